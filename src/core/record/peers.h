/* peers.h - what the other ranks of this process's job hold, for an out-of-memory report. */
#ifndef HR_RECORD_PEERS_H
#define HR_RECORD_PEERS_H

struct hr__report_ranks;

/* Reads what the other ranks on this host published (segment.h). Never fails, never waits, and allocates nothing: what cannot be read is left out.
 * Keeps the thread's last message. Must not be called by two threads at once. */
void hr__peers_read(struct hr__report_ranks *out);

#endif
