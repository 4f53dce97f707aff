/* convnet.c - a small convolutional network, trained with Adam with all its memory, and again with 60% of it: the losses are the
 * same.
 *
 *     convnet steps=20 image=32 percent=50   settings that are not given have their default */
#include "train_twice.h"

int main(int argc, char **argv)
{
	int64_t steps = 8, percent = 60;
	struct model model = MODEL_CONV;
	model.width = 16, model.image = 24;
	const struct setting settings[] = { { "steps", &steps },
		                                { "percent", &percent },
		                                { "batch", &model.batch },
		                                { "image", &model.image },
		                                { "width", &model.width } };
	if (read_settings(argc, argv, settings, sizeof settings / sizeof settings[0])) return 1;
	printf("a convolutional network of %lld and %lld channels, on %lld images of %lld by %lld pixels\n", (long long)model.width,
	       (long long)(2 * model.width), (long long)model.batch, (long long)model.image, (long long)model.image);
	return train_twice(&model, steps, percent);
}
