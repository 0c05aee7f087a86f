/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Updates for C++17: analyses as classes. An update, and when its functions are called, is
 * described in update.h, on which this header is built.
 *
 *     #include <overhear/update.hpp>
 *
 *     class count : public overhear::update {
 *       public:
 *         explicit count(const char *argument) { (void)argument; }
 *         void element(const oh_element_view &) override { elements++; }
 *         void report(overhear::report &report) override { report.set("elements", elements); }
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
 * An exception that leaves a function is caught: the update is not called any more, and the report
 * has what() as its message.
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

    template <class number> void set(const char *key, number value)
    {
        static_assert(std::is_arithmetic<number>::value, "set takes numbers and texts; documents by set_json");
        if constexpr (std::is_floating_point<number>::value)
            oh_result_f64(host_, key, static_cast<double>(value));
        else if constexpr (std::is_signed<number>::value)
            oh_result_i64(host_, key, value);
        else
            oh_result_u64(host_, key, value);
    }
    void set(const char *key, const char *text) { oh_result_text(host_, key, text); }
    void set(const char *key, const std::string &text) { oh_result_text(host_, key, text.c_str()); }
    void set_json(const char *key, const std::string &json)
    {
        oh_result_json(host_, key, json.c_str());
    }

  private:
    oh_host *host_;
};

/* A large element in the memory of its writer: numbers and structs are loaded from it by value. */
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
 * An update. `element` is required; it, `gap` and `advance` may run in a real-time thread, and
 * do not allocate there. The constructor, the destructor and `report` run elsewhere.
 */
class update {
  public:
    update() = default;
    update(const update &) = delete;
    update &operator=(const update &) = delete;
    virtual ~update() = default;

    /* Called for a stream before its first item. */
    virtual void open(const oh_stream &) {}
    /* Makes allocations and page faults in advance; see oh_update. */
    virtual void warm_up() {}
    /* Evaluates one element. */
    virtual void element(const oh_element_view &element) = 0;
    /*
     * Prepares the evaluation of a large element in place, without any effect outside of this
     * object, and returns whether there is something to commit. Called only if the update is
     * exported with exported_in_place and the element can be read in place; else `element` gets a
     * copy.
     */
    virtual bool prepare(const in_place &) { return false; }
    /* Ends an evaluation in place: commits the result of `prepare` if `valid`, else drops it. */
    virtual void commit(const oh_element_key &, bool valid) { (void)valid; }
    /* Called for missed elements of one stream. */
    virtual void gap(const oh_gap &) {}
    /* No element older than now_ns follows. */
    virtual void advance(std::uint64_t now_ns) { (void)now_ns; }
    /* Sets the results. It does not reset them: `overhear top` calls it once per refresh. */
    virtual void report(overhear::report &) {}

  protected:
    /* Requests the reactions that overhear.toml binds to this update; see oh_react. */
    void react(std::uint32_t code, std::int64_t value = 0)
    {
        if (host_)
            oh_react(host_, code, value);
    }

  private:
    friend struct detail::hosted;
    oh_host *host_ = nullptr; /* of the current call */
};

/* The payload of an element. The update must be exported for this type (see exported_for). */
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

/* The update of a call, with its host for as long as the call lasts. */
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
 * The entry of a class for OH_EXPORT_UPDATES. The class has a constructor for the argument (a const
 * char *). The parameters are its name, the pattern of its sensors (nullptr: all), and the policy
 * for missed elements.
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
 * OVERHEAR_FIELDS. A matching sensor of another type is not evaluated, and the report contains a
 * complaint.
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
