/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Tests of functions that may not enter the kernel: they run in children under a filter. */
#ifndef OVERHEAR_TESTS_SYSTEM_CALLS_H
#define OVERHEAR_TESTS_SYSTEM_CALLS_H

#include <errno.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/prctl.h>
#include <sys/syscall.h>

/* The exit status of a child that was permitted no filter. */
enum { REFUSED = 99 };

/* Installs a filter that lets exit_group and one more system call pass and does `otherwise` with
   all else. Returns 0 or an errno. */
static inline int filter_system_calls(uint32_t permitted, uint32_t otherwise)
{
    struct sock_filter filter[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_exit_group, 1, 0),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, permitted, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
        BPF_STMT(BPF_RET | BPF_K, otherwise),
    };
    struct sock_fprog program;
    program.len = sizeof filter / sizeof *filter;
    program.filter = filter;
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0)
        return errno;
    if (prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) != 0)
        return errno;
    return 0;
}

/* Kills the process at any further system call but exit_group and one more. Returns 0 or an
   errno. */
static inline int forbid_system_calls_but(uint32_t permitted)
{
    return filter_system_calls(permitted, SECCOMP_RET_KILL_PROCESS);
}

static inline int forbid_system_calls(void)
{
    return forbid_system_calls_but(SYS_exit_group);
}

#endif /* OVERHEAR_TESTS_SYSTEM_CALLS_H */
