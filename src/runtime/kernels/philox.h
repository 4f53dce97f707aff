/* philox.h - random numbers as a function of a seed and a position: Philox 4x32-10 (Salmon et al., Parallel random numbers: as easy as
 * 1, 2, 3). The seed is the key; the counter is the number of a block of four words, a stream, and an offset. */
#ifndef HR_RUNTIME_PHILOX_H
#define HR_RUNTIME_PHILOX_H

#ifdef __CUDACC_RTC__ /* a part of the card's programs too */
#define HR__PHILOX __device__ inline
#else
#include <stdint.h>
#define HR__PHILOX static inline
#endif

/* Makes the numbers that different ops draw from one seed independent. */
enum hr__random_stream { HR__RANDOM_NORMAL = 1, HR__RANDOM_UNIFORM = 2, HR__RANDOM_DROPOUT = 3 };

/* Two bits of the third word of the counter are the stream, so the low 62 bits of [offset] count. */
HR__PHILOX void hr__philox(uint64_t seed, uint64_t block, enum hr__random_stream stream, uint64_t offset, uint32_t out[4])
{
	uint32_t a = (uint32_t)block, b = (uint32_t)(block >> 32), c = (uint32_t)stream | (uint32_t)(offset >> 32) << 2, d = (uint32_t)offset;
	uint32_t key0 = (uint32_t)seed, key1 = (uint32_t)(seed >> 32);
	for (int round = 0; round < 10; round++) {
		uint64_t x = (uint64_t)a * 0xD2511F53u, y = (uint64_t)c * 0xCD9E8D57u;
		a = (uint32_t)(y >> 32) ^ b ^ key0;
		b = (uint32_t)y;
		c = (uint32_t)(x >> 32) ^ d ^ key1;
		d = (uint32_t)x;
		key0 += 0x9E3779B9u;
		key1 += 0xBB67AE85u;
	}
	out[0] = a;
	out[1] = b;
	out[2] = c;
	out[3] = d;
}

#endif
