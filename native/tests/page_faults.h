/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Addresses of the page faults of the calling thread, from the kernel's software event.
 *
 * A prepared sensor promises that its memory does not fault. A page of code can: a forked child
 * maps it anew, and fault-around leaves out a page that is locked for write-back or that was
 * evicted. A count of faults cannot separate the two, so faults are sorted by address.
 */
#ifndef OVERHEAR_TESTS_PAGE_FAULTS_H
#define OVERHEAR_TESTS_PAGE_FAULTS_H

#include <errno.h>
#include <linux/perf_event.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { FAULT_RING_BYTES = 8 * 4096, MOST_CODE_RANGES = 64 };

struct fault_log {
    struct perf_event_mmap_page *page;
    uint64_t code[MOST_CODE_RANGES][2]; /* from, to */
    int ranges;
};

/* Stores the address ranges of mapped code. */
static inline void fault_log_find_code(struct fault_log *log)
{
    FILE *maps = fopen("/proc/self/maps", "r");
    char line[512];
    while (maps != NULL && log->ranges < MOST_CODE_RANGES && fgets(line, sizeof line, maps) != NULL) {
        unsigned long long from, to;
        char rights[5];
        if (sscanf(line, "%llx-%llx %4s", &from, &to, rights) == 3 && rights[2] == 'x') {
            log->code[log->ranges][0] = from;
            log->code[log->ranges][1] = to;
            log->ranges++;
        }
    }
    if (maps != NULL)
        fclose(maps);
}

/* Logs faults from here on. Returns 0 or an errno. */
static inline int fault_log_begin(struct fault_log *log)
{
    struct perf_event_attr attributes;
    void *memory;
    int event;
    memset(log, 0, sizeof *log);
    fault_log_find_code(log);
    memset(&attributes, 0, sizeof attributes);
    attributes.size = sizeof attributes;
    attributes.type = PERF_TYPE_SOFTWARE;
    attributes.config = PERF_COUNT_SW_PAGE_FAULTS;
    attributes.sample_period = 1;
    attributes.sample_type = PERF_SAMPLE_ADDR;
    attributes.disabled = 1;
    attributes.exclude_kernel = 1;
    attributes.exclude_hv = 1;
    event = (int)syscall(SYS_perf_event_open, &attributes, 0, -1, -1, 0);
    if (event < 0)
        return errno;
    memory = mmap(NULL, 4096 + FAULT_RING_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, event, 0);
    if (memory == MAP_FAILED)
        return errno;
    log->page = (struct perf_event_mmap_page *)memory;
    /* This read maps the page, before the event counts. */
    if (__atomic_load_n(&log->page->data_head, __ATOMIC_ACQUIRE) != 0)
        return EINVAL;
    return ioctl(event, PERF_EVENT_IOC_ENABLE, 0) == 0 ? 0 : errno;
}

/* Number of faults outside of code. Each address is printed. */
static inline int fault_log_of_data(const struct fault_log *log)
{
    const uint64_t head = __atomic_load_n(&log->page->data_head, __ATOMIC_ACQUIRE);
    const unsigned char *ring = (const unsigned char *)log->page + 4096;
    uint64_t at;
    int faults = 0;
    for (at = 0; at < head;) {
        struct perf_event_header header;
        uint64_t address;
        int range, is_code = 0;
        memcpy(&header, ring + at, sizeof header);
        if (header.size == 0 || at + sizeof header + sizeof address > FAULT_RING_BYTES)
            break;
        memcpy(&address, ring + at + sizeof header, sizeof address);
        for (range = 0; range < log->ranges; range++)
            is_code |= address >= log->code[range][0] && address < log->code[range][1];
        /* A record of another type means lost records, which are counted as a fault. */
        if (header.type != PERF_RECORD_SAMPLE || !is_code) {
            printf("# page fault at %#llx\n", (unsigned long long)address);
            faults++;
        }
        at += header.size;
    }
    return faults;
}

#endif /* OVERHEAR_TESTS_PAGE_FAULTS_H */
