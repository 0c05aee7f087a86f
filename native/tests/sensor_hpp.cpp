/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* links: overhear. The typed sensors of C++: what they write, move and give back. */
#pragma GCC diagnostic error "-Wpedantic"
#include <overhear/sensor.hpp>

#include <cstring>
#include <string>
#include <thread>
#include <utility>

#include "tap.h"

namespace {

enum class phase : std::uint16_t { parse = 1, serve = 7 };

} // namespace

namespace server {

struct request {
    std::uint64_t took_ns;
    double load;
    float ratio;
    std::int32_t change;
    std::uint16_t port;
    phase reached;
    bool is_cached;
    signed char sign;
    char method[10];
};
OVERHEAR_FIELDS(request, "request", OVERHEAR_FIELD(took_ns, "ns"), OVERHEAR_FIELD(load, "%"),
                OVERHEAR_FIELD(ratio, ""), OVERHEAR_FIELD(change, "K"), OVERHEAR_FIELD(port, ""),
                OVERHEAR_FIELD(reached, ""), OVERHEAR_FIELD(is_cached, ""),
                OVERHEAR_FIELD(sign, ""), OVERHEAR_FIELD(method, ""));

struct tick {};
OVERHEAR_EVENT(tick, "tick");

} // namespace server

static_assert(!std::is_copy_constructible<overhear::sensor<server::request>>::value, "move only");
static_assert(!std::is_copy_assignable<overhear::sensor<server::request>>::value, "move only");
static_assert(std::is_nothrow_move_constructible<overhear::sensor<server::request>>::value, "");
static_assert(!std::is_move_constructible<overhear::element<server::request>>::value, "stays");

namespace {

const server::request value = {1, 2.5, 0.5f, -4, 80, phase::serve, true, -1, "GET"};

template <class payload> const payload &written(const oh_sensor *sensor, std::uint64_t position)
{
    const std::uint8_t *slot =
        sensor->base + OH_HEADER_SIZE + (position & sensor->mask) * sensor->stride;
    return *reinterpret_cast<const payload *>(slot + sizeof(oh_element));
}

void describes()
{
    constexpr auto &fields = overhear::detail::description_of<server::request>.fields;
    const std::uint32_t kinds[] = {OH_U64, OH_F64, OH_F32, OH_I32, OH_U16,
                                   OH_U16, OH_U8,  OH_I8,  OH_TEXT};
    bool good = fields.size() == 9;
    for (std::size_t index = 0; index < fields.size(); index++)
        good = good && fields[index].kind == kinds[index];
    tap_check(good, "kinds follow from the members' types");
    tap_check(std::strcmp(fields[8].name, "method") == 0 && fields[8].size == 10 &&
                  std::strcmp(fields[3].unit, "K") == 0,
              "names, sizes and units");
}

void writes()
{
    overhear::sensor<server::request> sensor("cxx", overhear::options().instance("a").capacity(32));
    tap_check(bool(sensor), "a sensor is registered");
    if (!sensor.is_connected())
        tap_check(overhear::last_error()[0] != '\0', "not connected, with a reason");
    sensor.write(value);
    {
        auto abandoned = sensor.begin();
        abandoned->took_ns = 99;
    }
    tap_check(sensor.handle()->count == 1, "an element without commit is not published");
    auto element = sensor.begin();
    *element = value;
    element->took_ns = 2;
    element.commit();
    const auto *handle = sensor.handle();
    tap_check(handle->count == 2 && written<server::request>(handle, 0).port == 80 &&
                  written<server::request>(handle, 0).reached == phase::serve &&
                  written<server::request>(handle, 1).took_ns == 2 &&
                  std::strcmp(written<server::request>(handle, 1).method, "GET") == 0,
              "copies and elements in place arrive");
}

void moves()
{
    auto first = overhear::sensor<server::request>::try_register("moved");
    const std::uint8_t *const base = first.handle()->base;
    first.write(value);
    overhear::sensor<server::request> second(std::move(first));
    tap_check(!first && first.handle() == nullptr && second.handle()->base == base &&
                  second.handle()->count == 1,
              "a moved sensor is the same one");
    overhear::sensor<server::request> third;
    tap_check(!third, "no sensor yet");
    third = std::move(second);
    third.write(value);
    tap_check(!second && third.handle()->base == base && third.handle()->count == 2, "and writes on");
    tap_check(alignof(overhear::sensor<server::request>) == 64 &&
                  sizeof(overhear::sensor<server::request>) == 64,
              "what a write needs lies in the object, in one line");
}

void events()
{
    overhear::sensor<server::tick> sensor("tick");
    sensor.write({});
    sensor.begin().commit();
    tap_check(sensor.handle()->count == 2 && sensor.handle()->stride == 8,
              "an event is its stamp alone");
}

/* Deeper on the stack than its caller, as a signal handler or a function called meanwhile is. */
__attribute__((noinline)) bool writes_deeper(overhear::laned_sensor<server::request> &sensor)
{
    return sensor.write(value);
}

void lanes()
{
    overhear::laned_sensor<server::request> sensor("laned", overhear::options().lanes(2));
    tap_check(bool(sensor) && sensor.is_enabled(), "a laned sensor is registered, and on");
    tap_check(sensor.prepare_thread() && sensor.write(value), "a thread writes into its lane");
    const auto written = [&sensor] {
        return sensor.handle()->lanes[0].count + sensor.handle()->lanes[1].count;
    };
    tap_check(written() == 1, "one element");
    bool nested = true;
    {
        auto open = sensor.begin();
        nested = !open || writes_deeper(sensor);
        open->took_ns = 3;
    }
    tap_check(!nested, "inside another write a write is refused");
    auto element = sensor.begin();
    tap_check(bool(element), "an element that was not committed gives its slot back");
    *element = value;
    tap_check(element.commit() && written() == 2, "and the next one is published");
    std::thread([&sensor] {
        tap_check(sensor.write(value) && sensor.write(value), "another thread has a lane, too");
    }).join();
    tap_check(written() == 4, "four elements in two lanes");
    overhear::laned_sensor<server::request> moved(std::move(sensor));
    tap_check(!sensor && moved.write(value), "it moves like others");
}

void queues()
{
    overhear::concurrent_sensor<server::request> sensor("queue", overhear::options().writers(2));
    tap_check(bool(sensor) && sensor.is_enabled(), "a concurrent sensor is registered, and on");
    tap_check(sensor.write(value), "an element is written");
    {
        auto abandoned = sensor.begin();
        abandoned->took_ns = 9;
    }
    auto first = sensor.begin();
    auto second = sensor.begin();
    tap_check(first && second && &*first != &*second, "elements that are out are different ones");
    *first = value;
    *second = value;
    std::thread([&second] { second.commit(); }).join();
    first.commit();
    tap_check(sensor.write(value), "another thread may commit, and the queue goes on");
    overhear::concurrent_sensor<server::request> moved(std::move(sensor));
    tap_check(!sensor && moved.write(value), "it moves like others");
}

void refuses()
{
    std::string said;
    int code = 0;
    try {
        overhear::sensor<server::tick> sensor("");
    } catch (const overhear::register_error &error) {
        said = error.what();
        code = error.code();
    }
    tap_check(code < 0 && said.find("id") != std::string::npos, "a refusal is thrown with its message");
    using std::chrono::milliseconds;
    const auto backwards = overhear::options().rate(milliseconds(1), milliseconds(2));
    const auto made = overhear::sensor<server::tick>::try_register("tick", backwards);
    tap_check(!made && overhear::last_error()[0] != '\0', "or reported without exception");
}

} // namespace

int main()
{
    describes();
    writes();
    moves();
    events();
    lanes();
    queues();
    refuses();
    return tap_done();
}
