/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Runs a program and says or changes something that the program itself does not.
 *
 *   wrapper usage FILE PROGRAM...   Runs the program as a child. FILE receives one line: its pid,
 *                                   and the voluntary and involuntary switches that wait4 reports
 *                                   of it and of all its descendants that were waited for.
 *   wrapper refuse PROGRAM...       Becomes the program, for which perf_event_open and bpf fail
 *                                   with EPERM, as the filters of containers have it.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

static void check(int holds, const char *what)
{
	if (holds)
		return;
	perror(what);
	exit(70);
}

static int usage(const char *path, char **program)
{
	struct rusage used;
	int status;
	pid_t pid = fork();

	check(pid >= 0, "fork");
	if (pid == 0) {
		execvp(program[0], program);
		perror(program[0]);
		_exit(127);
	}
	check(wait4(pid, &status, 0, &used) == pid, "wait4");

	FILE *file = fopen(path, "w");

	check(file != NULL, path);
	fprintf(file, "%d %ld %ld\n", (int)pid, used.ru_nvcsw, used.ru_nivcsw);
	check(fclose(file) == 0, path);
	return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

static int refuse(char **program)
{
	struct sock_filter steps[] = {
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_perf_event_open, 1, 0),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_bpf, 0, 1),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
	};
	struct sock_fprog filter = { .len = sizeof(steps) / sizeof(steps[0]), .filter = steps };

	check(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0, "PR_SET_NO_NEW_PRIVS");
	check(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter, 0, 0) == 0, "PR_SET_SECCOMP");
	execvp(program[0], program);
	perror(program[0]);
	return 127;
}

int main(int argc, char **argv)
{
	if (argc >= 4 && strcmp(argv[1], "usage") == 0)
		return usage(argv[2], argv + 3);
	if (argc >= 3 && strcmp(argv[1], "refuse") == 0)
		return refuse(argv + 2);
	fprintf(stderr, "usage: wrapper usage FILE PROGRAM... | wrapper refuse PROGRAM...\n");
	return 64;
}
