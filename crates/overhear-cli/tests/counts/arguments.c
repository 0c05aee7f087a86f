/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* An update over a probe: how often the function was called, and the sum of its first arguments. */
#include <stdlib.h>
#include <string.h>

#include <overhear/update.h>

struct sum {
	uint64_t elements;
	int64_t arguments;
};

static void *create(oh_host *host, const char *argument)
{
	(void)host;
	(void)argument;
	return calloc(1, sizeof(struct sum));
}

static int add(void *own, oh_host *host, const oh_element_view *element)
{
	struct sum *sum = own;
	int64_t argument;

	(void)host;
	/* The thread and the process come first. */
	memcpy(&argument, (const char *)element->payload + 8, sizeof(argument));
	sum->elements++;
	sum->arguments += argument;
	return 0;
}

static int report(void *own, oh_host *host)
{
	const struct sum *sum = own;

	oh_result_u64(host, "elements", sum->elements);
	oh_result_i64(host, "arguments", sum->arguments);
	return 0;
}

static const oh_update arguments = {
	.size = sizeof(oh_update),
	.name = "arguments",
	.sensors = "kernel:probe/doubled",
	.create = create,
	.element = add,
	.report = report,
	.destroy = free,
};

OH_EXPORT_UPDATES(&arguments)
