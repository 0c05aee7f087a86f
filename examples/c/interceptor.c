/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * links: overhear_monitor. A program that waits for a verdict before it acts: the interceptor
 * pattern, with a monitor of its own.
 *
 * A valve is moved by orders. Each order goes through a sensor, and the program waits until its
 * monitor has evaluated it; the monitor refuses what would open the valve by more than 40 at once.
 * The code that moves the valve and the judge share only the sensor.
 *
 * With `client` as argument the judge is another process: start `interceptor judge` first, both
 * under the same directory.
 *
 *     cargo build --release -p overhear-monitor-c
 *     cc -Iinclude examples/c/interceptor.c -Ltarget/release -loverhear_monitor -o interceptor
 *     LD_LIBRARY_PATH=target/release ./interceptor
 */
#define _POSIX_C_SOURCE 200809L
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <overhear/monitor.h>

enum { ORDERS = 10, MOST = 40 };
/* An hour: whoever waits longer has lost its monitor. */
#define PATIENCE_NS (3600u * (uint64_t)1000000000u)

struct order {
    uint64_t number;
    uint64_t position;
};

/* The state of the judge. The monitor's thread writes it, and the program reads it when it has
   waited. */
struct judge {
    uint64_t judged, refused, position;
    int last_was_refused;
};

static void *create(oh_host *host, const char *argument) OH_NOEXCEPT_
{
    (void)argument;
    return host->application;
}

static int judge_order(void *self, oh_host *host, const oh_element_view *element) OH_NOEXCEPT_
{
    struct judge *judge = (struct judge *)self;
    struct order order;
    (void)host;
    memcpy(&order, element->payload, sizeof order);
    judge->judged++;
    judge->last_was_refused = order.position > judge->position + MOST;
    if (judge->last_was_refused)
        judge->refused++;
    else
        judge->position = order.position;
    return 0;
}

/* The judge belongs to the program. */
static void keep(void *self) OH_NOEXCEPT_
{
    (void)self;
}

static oh_monitor *start_judge(struct judge *judge, const char *name)
{
    oh_monitor_options options;
    oh_monitor *monitor = NULL;
    oh_update update;
    memset(&options, 0, sizeof options);
    memset(&update, 0, sizeof update);
    options.sensors = "order";
    options.announce = name;
    update.size = sizeof update;
    update.name = "judge";
    update.create = create;
    update.element = judge_order;
    update.destroy = keep;
    if (oh_monitor_start(&monitor, &options) != 0 || oh_monitor_add(monitor, &update, "", judge) < 0) {
        fprintf(stderr, "%s\n", oh_last_error());
        exit(1);
    }
    return monitor;
}

static oh_sensor *register_orders(void)
{
    static const oh_field fields[] = {OH_FIELD_U64(struct order, number, ""),
                                      OH_FIELD_U64(struct order, position, "%")};
    oh_sensor_options options;
    oh_sensor *sensor = NULL;
    memset(&options, 0, sizeof options);
    options.id = "order";
    options.type = "order";
    options.fields = fields;
    options.field_count = sizeof fields / sizeof *fields;
    options.size = sizeof(struct order);
    if (oh_sensor_register(&sensor, &options) != 0) {
        fprintf(stderr, "%s\n", oh_last_error());
        exit(1);
    }
    return sensor;
}

static struct order order_of(uint64_t number)
{
    const struct order order = {number, number == 3 ? 100 : 10 * number};
    return order;
}

/* Everything in one program, with a directory of its own. */
static int alone(void)
{
    char socket[64];
    oh_directory *directory = NULL;
    struct judge judge = {0, 0, 0, 0};
    oh_monitor *monitor;
    oh_sensor *sensor;
    uint64_t valve = 0;
    snprintf(socket, sizeof socket, "/tmp/interceptor-%ld.sock", (long)getpid());
    if (oh_directory_start(&directory, socket) != 0) {
        fprintf(stderr, "%s\n", oh_last_error());
        return 1;
    }
    setenv("OVERHEAR_DIRECTORY", socket, 1);
    sensor = register_orders();
    monitor = start_judge(&judge, NULL);
    for (uint64_t number = 0; number < ORDERS; number++) {
        const struct order order = order_of(number);
        oh_sensor_put(sensor, &order);
        if (oh_monitor_wait(monitor, oh_now_ns(), PATIENCE_NS) != 0) {
            fprintf(stderr, "%s\n", oh_last_error());
            return 1;
        }
        /* Nothing is written meanwhile, so the verdict is the one on this order. */
        if (!judge.last_was_refused)
            valve = order.position;
    }
    oh_monitor_stop(monitor);
    oh_sensor_unregister(sensor);
    oh_directory_stop(directory);
    printf("%llu orders, %llu refused, the valve is at %llu\n", (unsigned long long)judge.judged,
           (unsigned long long)judge.refused, (unsigned long long)valve);
    return 0;
}

/* The judge in a process of its own, until its standard input ends. */
static int judge_others(void)
{
    struct judge judge = {0, 0, 0, 0};
    oh_monitor *monitor = start_judge(&judge, "judge");
    puts("judging");
    fflush(stdout);
    while (getchar() != EOF)
        ;
    oh_monitor_stop(monitor);
    printf("%llu orders, %llu refused\n", (unsigned long long)judge.judged,
           (unsigned long long)judge.refused);
    return 0;
}

/* Writes orders, and waits until that judge has seen each. */
static int client(void)
{
    oh_sensor *sensor = register_orders();
    oh_waiter *waiter = NULL;
    if (oh_waiter_attach(&waiter, "judge") != 0) {
        fprintf(stderr, "%s\n", oh_last_error());
        return 1;
    }
    for (uint64_t number = 0; number < ORDERS; number++) {
        const struct order order = order_of(number);
        oh_sensor_put(sensor, &order);
        if (oh_waiter_wait(waiter, oh_now_ns(), PATIENCE_NS) != 0) {
            fprintf(stderr, "%s\n", oh_last_error());
            return 1;
        }
    }
    oh_waiter_detach(waiter);
    oh_sensor_unregister(sensor);
    puts("every order was judged before the next one");
    return 0;
}

int main(int argc, char **argv)
{
    const char *mode = argc > 1 ? argv[1] : "";
    if (strcmp(mode, "judge") == 0)
        return judge_others();
    return strcmp(mode, "client") == 0 ? client() : alone();
}
