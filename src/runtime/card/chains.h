/* chains.h - kernels of chains, shared by card.c, which keeps them, and chain_text.c, which writes them. */
#ifndef HR_CARD_CHAINS_H
#define HR_CARD_CHAINS_H

#include "runtime/card/card.h"
#include "runtime/engine/chain.h"

/* Writes and compiles the program of a chain. *image is from hr__os()->alloc. */
hr_status hr__chain_build(const hr__card_facts *facts, const hr__chain *chain, void **image, size_t *bytes);
/* The kernels of a chain: of single elements, and of packs. HR_TOO_MANY: the card keeps no more. */
hr_status hr__card_chain(hr__card *card, const hr__chain *chain, hr__kernel *out[2]);

#endif
