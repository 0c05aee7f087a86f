/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Monitors inside a program, and waiting for their results, for C++17. It is built on monitor.h,
 * which describes the calls and the library to link (-loverhear_monitor); updates are classes of
 * update.hpp.
 *
 *     overhear::monitor monitor({"request"});
 *     judge &verdicts = monitor.add(std::make_unique<judge>(), "judge");
 *     ...
 *     request.write(now);
 *     monitor.wait(oh_now_ns(), std::chrono::seconds(1)); // verdicts are known now
 *
 * Objects end in their destructors. A failed start throws overhear::monitor_error with the message;
 * waiting returns whether all elements were evaluated in time.
 */
#ifndef OVERHEAR_MONITOR_HPP
#define OVERHEAR_MONITOR_HPP

#if !defined(__cplusplus) || __cplusplus < 201703L
#error "overhear/monitor.hpp needs C++17; compile with -std=c++17 or later, or include monitor.h"
#endif

#include <cerrno>
#include <chrono>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "monitor.h"
#include "update.hpp"

namespace overhear {

/* A monitor cannot be started or waited for; what() returns the reason and the remedy. */
class monitor_error : public std::runtime_error {
  public:
    using std::runtime_error::runtime_error;
};

namespace detail {

inline int checked(int code)
{
    if (code < 0)
        throw monitor_error(oh_last_error());
    return code;
}

/* Whether it was evaluated in time; an end of the monitor is an error. */
inline bool waited(int code)
{
    if (code == -ETIMEDOUT || code == -ENOENT)
        return false;
    checked(code);
    return true;
}

/* The object that the program gave becomes the update; the monitor owns it from here on. */
inline void *adopt(oh_host *host, const char *) noexcept
{
    return static_cast<std::unique_ptr<update> *>(host->application)->release();
}

/* A time that is over already is none. */
inline std::uint64_t limit(std::chrono::nanoseconds timeout)
{
    return timeout.count() > 0 ? static_cast<std::uint64_t>(timeout.count()) : 0;
}

struct end {
    void operator()(oh_directory *directory) const { oh_directory_stop(directory); }
    void operator()(oh_monitor *monitor) const { oh_monitor_stop(monitor); }
    void operator()(oh_waiter *waiter) const { oh_waiter_detach(waiter); }
};

} /* namespace detail */

/* A directory in this program: see oh_directory_start. It outlives sensors and monitors. */
class directory {
  public:
    explicit directory(const char *socket)
    {
        oh_directory *made = nullptr;
        detail::checked(oh_directory_start(&made, socket));
        raw_.reset(made);
    }

  private:
    std::unique_ptr<oh_directory, detail::end> raw_;
};

/* A monitor in this program. Updates that are added live until it ends, or they are removed. */
class monitor {
  public:
    explicit monitor(const oh_monitor_options &options = {})
    {
        oh_monitor *made = nullptr;
        detail::checked(oh_monitor_start(&made, &options));
        raw_.reset(made);
    }

    /*
     * Adds an object that derives from overhear::update. The monitor owns it from now on. Returns a
     * reference to it. `sensors` as in oh_update; `in_place` as for exported_in_place.
     */
    template <class type>
    type &add(std::unique_ptr<type> object, const char *name, const char *sensors = nullptr,
              std::uint32_t missed = OH_MISSED_CONTINUE, bool in_place = false)
    {
        type &added = *object;
        std::unique_ptr<update> owned = std::move(object);
        oh_update raw = detail::table(name, sensors, missed);
        raw.create = detail::adopt;
        if (in_place)
            raw = exported_in_place(raw);
        updates_.reserve(updates_.size() + 1);
        const int number = detail::checked(oh_monitor_add(raw_.get(), &raw, "", &owned));
        updates_.emplace_back(&added, number);
        return added;
    }

    /* The state of an update; `why` gets the message of oh_last_error. */
    oh_update_status status(const update &added, std::string *why = nullptr) const
    {
        oh_update_status status{};
        detail::checked(oh_monitor_status(raw_.get(), number_of(added), &status));
        if (why)
            *why = oh_last_error();
        return status;
    }

    /* Removes an update without disturbing the others, and destroys it. */
    void remove(const update &added)
    {
        const int number = number_of(added);
        detail::checked(oh_monitor_remove(raw_.get(), number));
        for (auto &known : updates_)
            if (known.second == number)
                known.first = nullptr;
    }

    /* Returns whether all elements stamped before until_ns are evaluated within the timeout. */
    bool wait(std::uint64_t until_ns, std::chrono::nanoseconds timeout)
    {
        return detail::waited(oh_monitor_wait(raw_.get(), until_ns, detail::limit(timeout)));
    }

    /* For the functions of monitor.h. */
    oh_monitor *get() const { return raw_.get(); }

  private:
    int number_of(const update &added) const
    {
        for (const auto &known : updates_)
            if (known.first == &added)
                return known.second;
        return -1;
    }

    std::unique_ptr<oh_monitor, detail::end> raw_;
    std::vector<std::pair<const update *, int>> updates_;
};

/* Waits for a monitor of this process or another. */
class waiter {
  public:
    explicit waiter(const char *monitor)
    {
        oh_waiter *made = nullptr;
        detail::checked(oh_waiter_attach(&made, monitor));
        raw_.reset(made);
    }

    /* Returns whether that monitor evaluates all elements stamped before until_ns within the
       timeout. */
    bool wait(std::uint64_t until_ns, std::chrono::nanoseconds timeout)
    {
        return detail::waited(oh_waiter_wait(raw_.get(), until_ns, detail::limit(timeout)));
    }

  private:
    std::unique_ptr<oh_waiter, detail::end> raw_;
};

} /* namespace overhear */

#endif
