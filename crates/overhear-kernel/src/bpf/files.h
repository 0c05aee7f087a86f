/* SPDX-License-Identifier: GPL-2.0 OR MIT OR Apache-2.0 */
/*
 * Open files of the current process.
 */
#pragma once

#include "core.h"

/* The open file of a descriptor; NULL if there is none. Its members are read with
 * bpf_probe_read_kernel. */
static always_inline struct file *open_file(u64 descriptor)
{
	struct task_struct *task = bpf_get_current_task_btf();
	struct files_struct *files = task->files;
	struct fdtable *table = 0;
	struct file **files_of = 0, *file = 0;
	u32 most = 0;

	bpf_probe_read_kernel(&table, sizeof(table), &files->fdt);
	bpf_probe_read_kernel(&most, sizeof(most), &table->max_fds);
	if (descriptor >= most)
		return 0;
	bpf_probe_read_kernel(&files_of, sizeof(files_of), &table->fd);
	bpf_probe_read_kernel(&file, sizeof(file), files_of + descriptor);
	return file;
}
