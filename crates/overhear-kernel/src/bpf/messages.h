/* SPDX-License-Identifier: GPL-2.0 OR MIT OR Apache-2.0 */
/*
 * Programs of messages through pipes and sockets: a part of sensors.bpf.c, which has the rules.
 */
#pragma once

#include "files.h"

/* Messages between threads */

struct socket_wq;

struct sock;

struct socket {
	short type;
	struct sock *sk;
} CORE;

struct socket_alloc {
	struct socket socket;
	struct inode vfs_inode;
} CORE;

struct sock_common {
	u16 skc_family;
} CORE;

struct sock {
	struct sock_common __sk_common;
	u16 sk_protocol;
	struct socket *sk_socket;
} CORE;

struct unix_sock {
	struct sock sk;
	struct sock *peer;
} CORE;

static always_inline u64 inode_of(struct sock *sock)
{
	struct socket *socket = 0;
	unsigned long inode = 0;

	bpf_probe_read_kernel(&socket, sizeof(socket), &sock->sk_socket);
	if (socket)
		bpf_probe_read_kernel(&inode, sizeof(inode),
				      &((struct socket_alloc *)socket)->vfs_inode.i_ino);
	return inode;
}

static always_inline int socket_passed(struct sock *sock, int result, u32 kind)
{
	enum { AF_UNIX = 1 };
	struct task_context at = current_context();

	if (!at.words || !at.monitors || result <= 0)
		return 0;

	struct ipc_element element = {
		.tid = at.tid,
		.pid = at.pid,
		.kind = kind,
		.bytes = result,
		.channel = inode_of(sock),
	};
	struct sock *peer = 0;
	u16 family = 0, protocol = 0;

	bpf_probe_read_kernel(&family, sizeof(family), &sock->__sk_common.skc_family);
	bpf_probe_read_kernel(&protocol, sizeof(protocol), &sock->sk_protocol);
	element.family = family;
	element.protocol = protocol;

	if (element.family == AF_UNIX)
		bpf_probe_read_kernel(&peer, sizeof(peer), &((struct unix_sock *)sock)->peer);
	if (peer)
		element.peer = inode_of(peer);
	emit_ipc(at.words, at.monitors, &element);
	return 0;
}

SEC("tp_btf/sock_send_length")
int on_socket_send(u64 *ctx)
{
	return socket_passed((void *)ctx[0], (int)ctx[1], IPC_SEND);
}

SEC("tp_btf/sock_recv_length")
int on_socket_receive(u64 *ctx)
{
	return socket_passed((void *)ctx[0], (int)ctx[1], IPC_RECEIVE);
}

/* The socket of a descriptor of the current process; NULL if it is none. */
static always_inline struct sock *socket_of(u64 descriptor)
{
	enum { TYPE = 0170000, SOCKET = 0140000 };
	struct file *file = open_file(descriptor);
	struct socket *socket = 0;
	struct inode *inode = 0;
	struct sock *sock = 0;
	u16 mode = 0;

	if (!file)
		return 0;
	bpf_probe_read_kernel(&inode, sizeof(inode), &file->f_inode);
	bpf_probe_read_kernel(&mode, sizeof(mode), &inode->i_mode);
	if ((mode & TYPE) != SOCKET)
		return 0;
	bpf_probe_read_kernel(&socket, sizeof(socket), &file->private_data);
	if (socket)
		bpf_probe_read_kernel(&sock, sizeof(sock), &socket->sk);
	return sock;
}

/*
 * On kernels without the tracepoints above: the system calls that send and receive. `on_pipe` keeps
 * their numbers and descriptors.
 */
SEC("tp_btf/sys_exit")
int on_socket_call(u64 *ctx)
{
	struct task_context at = current_context();
	long long result = ctx[1];

	if (!at.words || !at.tracking || !at.monitors || result <= 0 || !at.tracking->call)
		return 0;

	u64 number = at.tracking->call - 1;
	bool receives = number == settings.call_recvfrom || number == settings.call_recvmsg ||
			number == settings.call_read || number == settings.call_readv;

	if (!receives && number != settings.call_sendto && number != settings.call_sendmsg &&
	    number != settings.call_write && number != settings.call_writev)
		return 0;

	struct sock *sock = socket_of(at.tracking->call_first);

	return sock ? socket_passed(sock, (int)result, receives ? IPC_RECEIVE : IPC_SEND) : 0;
}

SEC("tp_btf/sys_enter")
int on_pipe(u64 *ctx)
{
	struct task_context at = current_context();

	if (at.words && at.tracking)
		enter_call(at.words, at.tracking, (void *)ctx[0], ctx[1]);
	return 0;
}

/* The inode of a descriptor of the current process if it is a pipe; else 0. */
static always_inline u64 pipe_inode(u64 descriptor)
{
	enum { TYPE = 0170000, FIFO = 0010000 };
	struct file *file = open_file(descriptor);
	struct inode *inode = 0;
	unsigned long number = 0;
	u16 mode = 0;

	if (!file)
		return 0;
	bpf_probe_read_kernel(&inode, sizeof(inode), &file->f_inode);
	bpf_probe_read_kernel(&mode, sizeof(mode), &inode->i_mode);
	if ((mode & TYPE) != FIFO)
		return 0;
	bpf_probe_read_kernel(&number, sizeof(number), &inode->i_ino);
	return number;
}

SEC("tp_btf/sys_exit")
int on_pipe_return(u64 *ctx)
{
	struct task_context at = current_context();
	long long result = ctx[1];

	if (!at.words || !at.tracking || !at.monitors || result <= 0 || !at.tracking->call)
		return 0;

	u64 number = at.tracking->call - 1;
	bool reads = number == settings.call_read || number == settings.call_readv;

	if (!reads && number != settings.call_write && number != settings.call_writev)
		return 0;

	struct ipc_element element = {
		.tid = at.tid,
		.pid = at.pid,
		.kind = reads ? IPC_RECEIVE : IPC_SEND,
		.bytes = result,
		.channel = pipe_inode(at.tracking->call_first),
	};

	if (element.channel)
		emit_ipc(at.words, at.monitors, &element);
	return 0;
}
