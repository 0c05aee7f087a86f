/* SPDX-License-Identifier: GPL-2.0 OR MIT OR Apache-2.0 */
/*
 * What user space and the programs of a sampler share: settings, words, samples.
 *
 * `bpf/sample_layout.rs` has the same members in the same order; its tests compare them.
 */
#pragma once

#include "core.h"

enum { MAX_QUANTITIES = 28, MAX_COUNTERS = 8, SAMPLE_WORDS = 4 };

/* A quantity is an account of the thread, or COUNTER plus the index of a counter of the CPUs. */
enum source {
	CPU_TIME = 1,
	WAIT_TIME = 2,
	VOLUNTARY_SWITCHES = 3,
	INVOLUNTARY_SWITCHES = 4,
	SWITCHES = 5,
	MIGRATIONS = 6,
	MINOR_FAULTS = 7,
	MAJOR_FAULTS = 8,
	FAULTS = 9,
	READ_BYTES = 10,
	WRITE_BYTES = 11,
	RESIDENT = 12,
	COUNTER = 32,
};

/* The numbers of overhear_event::SamplePoint. */
enum point {
	POINT_SWITCH = 2,
	POINT_WAKE_UP = 3,
	POINT_CALL_ENTRY = 4,
	POINT_CALL_EXIT = 5,
	POINT_TIMER = 6,
	POINT_PROBE = 7,
	POINT_JOB_END = 8,
	POINT_THREAD_END = 9,
};

/* Where jobs end; a set. Functions are probes, whose cookie is the point. */
enum job_end {
	JOB_YIELD = 1,
	JOB_DEADLINE_YIELD = 2,
	JOB_SLEEP = 4,
	JOB_FUTEX = 8,
	JOB_READ_DESCRIPTOR = 16,
	JOB_READ_FILE = 32,
};

/* Constants to the verifier, which drops the branches that they exclude. */
struct sampler {
	u64 mask_interrupts;
	u64 words;	  /* of a sample, with its stamp */
	u64 stride_shift; /* of its slot in a ring */
	u64 pages;	  /* of a ring */
	u64 ring_mask;	  /* elements of a ring less one */
	u64 page_bytes;	  /* of the memory of programs */
	u64 points;	  /* set: 1 << enum point */
	u64 jobs;	  /* set of enum job_end */
	u64 least_ns;	  /* distance of samples of a thread at points, except ends */
	u64 period_ns;	  /* of the timer */
	u64 two_series; /* bool: jobs, and other points (rule 10) */
	u64 within_slices; /* bool: samples of running threads need their CPU time */
	u64 quantities;
	u64 counters;
	u64 futex;	    /* address; from `start_code` of the program if it is relative */
	u64 futex_relative; /* bool */
	u64 file_inode;	    /* JOB_READ_FILE; JOB_FUTEX, if relative: of the program's file */
	u64 file_device;
	u64 descriptor;	 /* JOB_READ_DESCRIPTOR */
	u64 call_yield;	 /* numbers of system calls; UINT32_MAX where there is none */
	u64 call_nanosleep;
	u64 call_clock_nanosleep;
	u64 call_futex;
	u64 call_read;
	u64 call_readv;
	u64 call_pread;
	u64 call_preadv;
	u64 call_recvfrom;
	u64 call_recvmsg;
	u64 source[MAX_QUANTITIES]; /* enum source */
};

enum sampler_operation { FOLLOW = 1, LEAVE = 2 };

/* One page, which user space maps writable. */
struct sampler_words {
	u64 live;	/* whether children are followed */
	u64 active;	/* whether samples are written */
	u64 off;	/* whether a budget keeps them from being written */
	u64 operation;	/* enum sampler_operation; its arguments follow */
	u64 inherit;	/* FOLLOW: children are followed as well */
	u64 held;	/* FOLLOW: the thread is held before its execve */
	u64 seen;	/* answer: living threads that were visited */
	u64 changed;	/* answer: those whose accounts begin or end */
	u64 failed;	/* answer: those that found no memory */
	u64 exits;	/* counted by the programs: followed threads that announced their end */
	u64 ends;	/* counted by the programs: last departures of followed threads */
	u64 unread;	/* counted by the programs: reads of counters that failed */
};
