/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Updates for C++17: evaluations as classes. An update, and when its functions are called, is
 * described in update.h, on which this header is built.
 *
 *     #include <overhear/update.hpp>
 *
 *     class count : public overhear::update {
 *       public:
 *         explicit count(const char *argument) { (void)argument; }
 *         void element(const oh_element_view &) override { elements++; }
 *         void report(overhear::report &report) override { report.tell("elements", elements); }
 *
 *       private:
 *         std::uint64_t elements = 0;
 *     };
 *
 *     static constexpr oh_update exported = overhear::exported<count>("count");
 *     OH_EXPORT_UPDATES(&exported)
 *
 * Build it with `c++ -std=c++17 -shared -fPIC -Iinclude`.
 *
 * An exception that leaves a function is caught: the update is called no more, and the report has
 * what() as its message.
 */
#ifndef OVERHEAR_UPDATE_HPP
#define OVERHEAR_UPDATE_HPP

#if !defined(__cplusplus) || __cplusplus < 201703L
#error "overhear/update.hpp needs C++17; compile with -std=c++17 or later, or include update.h"
#endif

#include <cstddef>
#include <cstdint>
#include <exception>
#include <stdexcept>
#include <string>
#include <type_traits>

#include "fields.hpp"
#include "update.h"

namespace overhear {

/* Takes the results of an update: a key with a number, a text, or any JSON document. */
class report {
  public:
    explicit report(oh_host *host) : host_(host) {}

    template <class number> void tell(const char *key, number value)
    {
        static_assert(std::is_arithmetic<number>::value, "tell numbers and texts; others by tell_json");
        if constexpr (std::is_floating_point<number>::value)
            oh_tell_f64(host_, key, static_cast<double>(value));
        else if constexpr (std::is_signed<number>::value)
            oh_tell_i64(host_, key, value);
        else
            oh_tell_u64(host_, key, value);
    }
    void tell(const char *key, const char *text) { oh_tell_text(host_, key, text); }
    void tell(const char *key, const std::string &text) { oh_tell_text(host_, key, text.c_str()); }
    void tell_json(const char *key, const std::string &json)
    {
        oh_tell_json(host_, key, json.c_str());
    }

  private:
    oh_host *host_;
};

/* A large element where its writer put it: numbers and structs are loaded from it by value. */
class in_place {
  public:
    explicit in_place(const oh_element_in_place &raw) : raw_(raw) {}

    const oh_stream &stream() const { return *raw_.stream; }
    std::uint64_t sequence() const { return raw_.sequence; }
    std::uint64_t time_ns() const { return raw_.time_ns; }
    std::uint32_t writer_tid() const { return raw_.writer_tid; }

    /* A value that lies at `offset`, for example offsetof(payload, member). It may be a mixture. */
    template <class value> value get(std::size_t offset) const
    {
        static_assert(std::is_trivially_copyable<value>::value, "values are loaded byte by byte");
        value loaded;
        load(offset, &loaded, sizeof loaded);
        return loaded;
    }
    void load(std::size_t offset, void *to, std::size_t bytes) const
    {
        oh_in_place_load(&raw_, static_cast<std::uint32_t>(offset),
                         static_cast<std::uint32_t>(bytes), to);
    }

  private:
    const oh_element_in_place &raw_;
};

namespace detail {
struct hosted;
}

/*
 * An evaluation. `element` is required; it, `gap` and `advance` may run in a real-time thread, and
 * do not allocate there. The constructor, the destructor and `report` run elsewhere.
 */
class update {
  public:
    update() = default;
    update(const update &) = delete;
    update &operator=(const update &) = delete;
    virtual ~update() = default;

    /* Learns of a stream before the first of its items. */
    virtual void open(const oh_stream &) {}
    /* Prepares for evaluations that must neither allocate nor fault; see oh_update. */
    virtual void warm_up() {}
    /* Evaluates one element. */
    virtual void element(const oh_element_view &element) = 0;
    /*
     * Prepares the evaluation of a large element in place, without any effect outside of this
     * object, and says whether there is something to commit. Only of an update that is exported
     * with exported_in_place; others get copies, and so does this one where elements cannot stay
     * where they are.
     */
    virtual bool prepare(const in_place &) { return false; }
    /* Ends what prepare began: commits the result if `valid`, else drops it. */
    virtual void commit(const oh_element_key &, bool valid) { (void)valid; }
    /* Learns of elements that were missed. */
    virtual void gap(const oh_gap &) {}
    /* Nothing older than now_ns can still come. */
    virtual void advance(std::uint64_t now_ns) { (void)now_ns; }
    /* Tells the results, and leaves them as they are: `overhear top` asks for each picture. */
    virtual void report(overhear::report &) {}

  protected:
    /* Asks for the reactions that overhear.toml binds to this update; see oh_react. */
    void react(std::uint32_t code, std::int64_t value = 0)
    {
        if (host_)
            oh_react(host_, code, value);
    }

  private:
    friend struct detail::hosted;
    oh_host *host_ = nullptr; /* of the call that is under way */
};

/* The payload of an element whose update is exported for this type (see exported_for). */
template <class payload> const payload &payload_of(const oh_element_view &element)
{
    if (element.stream->payload_size != sizeof(payload))
        throw std::invalid_argument("the payload has another size than the type");
    return *static_cast<const payload *>(element.payload);
}

namespace detail {

/* Calls; an exception becomes a failure with its message. */
template <class function> int guard(oh_host *host, function &&call) noexcept
{
    try {
        call();
        return 0;
    } catch (const std::exception &error) {
        oh_fail(host, error.what());
    } catch (...) {
        oh_fail(host, "it threw something that is no std::exception");
    }
    return 1;
}

inline update &as_update(void *self)
{
    return *static_cast<update *>(self);
}

/* The update of a call, which knows its host meanwhile. */
struct hosted {
    hosted(void *self, oh_host *host) : called(as_update(self)) { called.host_ = host; }
    hosted(const hosted &) = delete;
    hosted &operator=(const hosted &) = delete;
    ~hosted() { called.host_ = nullptr; }
    update &called;
};

template <class type> void *create(oh_host *host, const char *argument) noexcept
{
    update *made = nullptr;
    guard(host, [&] { made = new type(argument); });
    return made;
}
inline int on_open(void *self, oh_host *host, const oh_stream *stream) noexcept
{
    return guard(host, [&] { as_update(self).open(*stream); });
}
inline int on_warm_up(void *self, oh_host *host) noexcept
{
    return guard(host, [&] { as_update(self).warm_up(); });
}
inline int on_element(void *self, oh_host *host, const oh_element_view *element) noexcept
{
    return guard(host, [&] { hosted(self, host).called.element(*element); });
}
inline int on_prepare(void *self, oh_host *host, const oh_element_in_place *element,
                      int *prepared) noexcept
{
    return guard(host, [&] { *prepared = as_update(self).prepare(in_place(*element)) ? 1 : 0; });
}
inline int on_commit(void *self, oh_host *host, const oh_element_key *element, int valid) noexcept
{
    return guard(host, [&] { hosted(self, host).called.commit(*element, valid != 0); });
}
inline int on_gap(void *self, oh_host *host, const oh_gap *gap) noexcept
{
    return guard(host, [&] { hosted(self, host).called.gap(*gap); });
}
inline int on_advance(void *self, oh_host *host, std::uint64_t now_ns) noexcept
{
    return guard(host, [&] { hosted(self, host).called.advance(now_ns); });
}
inline int on_report(void *self, oh_host *host) noexcept
{
    return guard(host, [&] {
        overhear::report report(host);
        as_update(self).report(report);
    });
}
inline void destroy(void *self) noexcept
{
    delete &as_update(self);
}

/* Everything but `create`. */
constexpr oh_update table(const char *name, const char *sensors, std::uint32_t missed)
{
    oh_update raw{};
    raw.size = sizeof(oh_update);
    raw.missed = missed;
    raw.name = name;
    raw.sensors = sensors;
    raw.open = on_open;
    raw.element = on_element;
    raw.gap = on_gap;
    raw.advance = on_advance;
    raw.report = on_report;
    raw.destroy = destroy;
    raw.warm_up = on_warm_up;
    return raw;
}

} /* namespace detail */

/*
 * What OH_EXPORT_UPDATES takes, for a class that is made from the argument (a const char *): its
 * name, which sensors it wants (nullptr: all), and what it does when elements were missed.
 */
template <class type>
constexpr oh_update exported(const char *name, const char *sensors = nullptr,
                             std::uint32_t missed = OH_MISSED_CONTINUE)
{
    static_assert(std::is_base_of<update, type>::value, "an update derives from overhear::update");
    oh_update raw = detail::table(name, sensors, missed);
    raw.create = detail::create<type>;
    return raw;
}

/*
 * The same for a class that evaluates elements of one type alone, a struct described by
 * OVERHEAR_FIELDS: a sensor that is asked for and writes another type is not evaluated, and the
 * report says so.
 */
template <class type, class payload>
constexpr oh_update exported_for(const char *name, const char *sensors = nullptr,
                                 std::uint32_t missed = OH_MISSED_CONTINUE)
{
    oh_update raw = exported<type>(name, sensors, missed);
    raw.type = detail::description_of<payload>.type_id;
    raw.fields = detail::description_of<payload>.fields.data();
    raw.field_count = static_cast<std::uint32_t>(detail::description_of<payload>.fields.size());
    raw.payload_size = static_cast<std::uint32_t>(detail::payload_size<payload>);
    return raw;
}

/* An update of exported or exported_for that evaluates large elements in place. */
constexpr oh_update exported_in_place(oh_update raw)
{
    raw.prepare = detail::on_prepare;
    raw.commit = detail::on_commit;
    return raw;
}

} /* namespace overhear */

#endif
