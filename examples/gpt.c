/* gpt.c - a small GPT, trained with Adam with all its memory, and again with 60% of it: the losses are the same.
 *
 *     gpt steps=20 blocks=8 percent=50      settings that are not given have their default */
#include "train_twice.h"

int main(int argc, char **argv)
{
	int64_t steps = 10, percent = 60;
	struct model model = MODEL_GPT;
	model.batch = 2, model.time = 64, model.width = 128, model.classes = 256, model.heads = 4;
	const struct setting settings[] = { { "steps", &steps },         { "percent", &percent },    { "batch", &model.batch },
		                                { "time", &model.time },     { "width", &model.width },  { "heads", &model.heads },
		                                { "blocks", &model.blocks }, { "words", &model.classes } };
	if (read_settings(argc, argv, settings, sizeof settings / sizeof settings[0])) return 1;
	printf("a GPT of %lld blocks, %lld wide, on %lld times %lld tokens of %lld words\n", (long long)model.blocks,
	       (long long)model.width, (long long)model.batch, (long long)model.time, (long long)model.classes);
	return train_twice(&model, steps, percent);
}
