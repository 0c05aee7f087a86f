/* SPDX-License-Identifier: GPL-2.0 OR MIT OR Apache-2.0 */
/*
 * What the programs need of BPF and of the kernel, and nothing else.
 *
 * The kernel's structs appear with only those members that we read. `preserve_access_index`
 * makes libbpf look their offsets up in the running kernel's type information (CO-RE), so one
 * object file serves every kernel and no vmlinux.h of a particular one is needed.
 */
#pragma once

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;
typedef _Bool bool;
_Static_assert(sizeof(long) == 8, "long is the kernel's 64-bit long");

#define SEC(name) __attribute__((section(name), used))
#define CORE __attribute__((preserve_access_index))
#define WEAK_KSYM __attribute__((weak)) __attribute__((section(".ksyms")))
#define always_inline inline __attribute__((always_inline))
#define noinline __attribute__((noinline))

/* How libbpf reads map definitions: numbers as array sizes, types as pointers. */
#define MAP_UINT(name, value) int (*name)[value]
#define MAP_TYPE(name, type) type *name
#define MAP_VALUES(name, type) type *name[]

/* Whether the running kernel has this field (enum bpf_field_info_kind). */
#define FIELD_EXISTS(field) __builtin_preserve_field_info(field, 2)

#define barrier() __asm__ volatile("" ::: "memory")
#define READ_ONCE(x) (*(const volatile typeof(x) *)&(x))
#define WRITE_ONCE(x, value) (*(volatile typeof(x) *)&(x) = (value))

enum {
	BPF_MAP_TYPE_HASH = 1,
	BPF_MAP_TYPE_ARRAY = 2,
	BPF_MAP_TYPE_PERF_EVENT_ARRAY = 4,
	BPF_MAP_TYPE_PERCPU_ARRAY = 6,
	BPF_MAP_TYPE_ARRAY_OF_MAPS = 12,
	BPF_MAP_TYPE_TASK_STORAGE = 29,
};
enum { BPF_F_NO_PREALLOC = 1, BPF_F_MMAPABLE = 1 << 10, BPF_F_INNER_MAP = 1 << 12 };
enum { BPF_LOCAL_STORAGE_GET_F_CREATE = 1 };

static void *(*const bpf_map_lookup_elem)(void *map, const void *key) = (void *)1;
static u64 (*const bpf_ktime_get_ns)(void) = (void *)5;
static u32 (*const bpf_get_smp_processor_id)(void) = (void *)8;
static u64 (*const bpf_get_current_pid_tgid)(void) = (void *)14;
static long (*const bpf_probe_read_kernel)(void *to, u32 size, const void *from) = (void *)113;
static long (*const bpf_probe_read_kernel_str)(void *to, u32 size, const void *from) = (void *)115;
static u64 (*const bpf_perf_event_read)(void *map, u64 index) = (void *)22;
static void *(*const bpf_task_storage_get)(void *map, void *task, void *value, u64 flags) =
	(void *)156;
static long (*const bpf_task_storage_delete)(void *map, void *task) = (void *)157;
static void *(*const bpf_get_current_task_btf)(void) = (void *)158;
static long (*const bpf_map_update_elem)(void *map, const void *key, const void *value, u64 flags) =
	(void *)2;
static long (*const bpf_map_delete_elem)(void *map, const void *key) = (void *)3;
static void *(*const bpf_task_pt_regs)(void *task) = (void *)175;
static long (*const bpf_loop)(u32 times, void *callback, void *context, u64 flags) = (void *)181;

extern void bpf_local_irq_save(unsigned long *flags) WEAK_KSYM;
extern void bpf_local_irq_restore(unsigned long *flags) WEAK_KSYM;

struct sched_entity {
	u64 sum_exec_runtime;
	u64 nr_migrations;
} CORE;

struct sched_info {
	u64 run_delay;
} CORE;

struct task_io_accounting {
	u64 read_bytes;
	u64 write_bytes;
} CORE;

struct thread_info {
	u32 cpu;
} CORE;

struct kernfs_node {
	u64 id;
} CORE;

/* A cgroup begins with its own subsystem state, whose parent is that of the parent cgroup. */
struct cgroup_subsys_state {
	struct cgroup_subsys_state *parent;
} CORE;

struct cgroup {
	struct cgroup_subsys_state self;
	struct kernfs_node *kn;
} CORE;

struct css_set {
	struct cgroup *dfl_cgrp;
} CORE;

struct super_block {
	u32 s_dev;
} CORE;

struct inode {
	u16 i_mode;
	unsigned long i_ino;
	struct super_block *i_sb;
} CORE;

struct file {
	struct inode *f_inode;
	void *private_data;
} CORE;

struct fdtable {
	u32 max_fds;
	struct file **fd;
} CORE;

struct files_struct {
	struct fdtable *fdt;
} CORE;

struct pt_regs {
#if defined(OVERHEAR_ARCH_X86_64)
	unsigned long di;
	unsigned long si;
	unsigned long orig_ax;
#elif defined(OVERHEAR_ARCH_AARCH64)
	u64 regs[31];
	int syscallno;
#else
	char none;
#endif
} CORE;

struct bpf_local_storage;

struct mm_struct {
	unsigned long start_code;
	struct file *exe_file;
} CORE;

struct task_struct {
	struct bpf_local_storage *bpf_storage; /* of all maps of task storage; 0 if none has any */
	struct files_struct *files;
	struct thread_info thread_info;
	u32 __state;
	u32 flags;
	int pid;
	int tgid;
	int exit_code;
	int prio;
	int normal_prio;
	u32 policy;
	unsigned long nvcsw;
	unsigned long nivcsw;
	unsigned long min_flt;
	unsigned long maj_flt;
	struct sched_entity se;
	struct sched_info sched_info;
	struct task_io_accounting ioac;
	struct mm_struct *mm;
	struct css_set *cgroups;
	char comm[16];
} CORE;
