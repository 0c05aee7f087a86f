/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Samplers for C++17: move-only, given back by their destructors; jobs end with their scope.
 *
 *     #include <overhear/sampler.hpp>
 *
 *     OH_SAMPLER(decoder, 0, "cycles", "instructions", "llc-misses");
 *
 *     overhear::sampler sampler(decoder);
 *     for (;;) {
 *         const auto job = sampler.begin_job(); // ends, and is sampled, at the end of its scope
 *         decode_frame();
 *     }
 *
 * examples/cpp/jobs.cpp is this as a program that runs. Design constraints are those of sampler.h,
 * on which this header stands.
 *
 * With OVERHEAR_DISABLE a sampler is an empty class whose functions do nothing, and liboverhear
 * need not be linked.
 */
#ifndef OVERHEAR_SAMPLER_HPP
#define OVERHEAR_SAMPLER_HPP

#include <utility>

#include "registered.hpp"
#include "sampler.h"

namespace overhear {

class sampler;

/* A job that has begun. It ends, and a sample is taken, where the value is destroyed. */
class [[nodiscard]] job {
  public:
    job(const job &) = delete;
    job &operator=(const job &) = delete;

    ~job()
    {
#ifndef OVERHEAR_DISABLE
        (void)oh_sampler_job_end(sampler_);
#endif
    }

  private:
    friend class sampler;

#ifndef OVERHEAR_DISABLE
    explicit job(oh_sampler *sampler) noexcept : sampler_(sampler)
    {
        (void)oh_sampler_job_begin(sampler_);
    }

    oh_sampler *sampler_;
#else
    explicit job(oh_sampler *) noexcept {}
#endif
};

/* Counters of the thread that made the sampler. That thread alone takes samples. */
class sampler {
  public:
    /* No sampler yet. */
    sampler() noexcept = default;

#if defined(__cpp_exceptions)
    /*
     * Registers a sampler for the calling thread. Cold; may block. Without a directory it succeeds;
     * is_connected is false then. Throws register_error if a counter is unknown, not permitted,
     * does not exist here or does not fit.
     */
    explicit sampler(const oh_sampler_options &settings, const char *instance = nullptr)
    {
        const int code = open(settings, instance);
        if (code != 0)
            throw register_error(code);
    }
#endif

    /* The same without exceptions: a failure gives a sampler that converts to false; last_error()
       returns the reason. */
    static sampler try_register(const oh_sampler_options &settings,
                                const char *instance = nullptr) noexcept
    {
        sampler made;
        (void)made.open(settings, instance);
        return made;
    }

    sampler(sampler &&other) noexcept
    {
        swap_(other);
    }

    sampler &operator=(sampler &&other) noexcept
    {
        sampler taken(std::move(other));
        swap_(taken);
        return *this;
    }

    ~sampler()
    {
        oh_sampler_unregister(handle_());
    }

    /* Whether there is a sampler; false with OVERHEAR_DISABLE. */
    explicit operator bool() const noexcept
    {
        return handle_() != nullptr;
    }

    /* Takes a sample, unless the last one is younger than the period. Returns whether one was
       taken. */
    OH_ALWAYS_INLINE_ bool sample() noexcept
    {
        return oh_sampler_sample(handle_()) == 1;
    }

    /* Begins a job, which ends with the value. */
    job begin_job() noexcept
    {
        return job(handle_());
    }

    /* Ends a job that began where the previous one ended. Returns whether a sample was taken. */
    bool job_end() noexcept
    {
        return oh_sampler_job_end(handle_()) == 1;
    }

    bool is_connected() const noexcept
    {
        return oh_sampler_is_connected(handle_()) == 1;
    }

    bool uses_rdpmc() const noexcept
    {
        return oh_sampler_uses_rdpmc(handle_()) == 1;
    }

    /* Samples that could not be taken; see oh_sampler_failed. */
    std::uint64_t failed() const noexcept
    {
        return oh_sampler_failed(handle_());
    }

    /* Why a counter was left out, from 0 on; nullptr if fewer were. */
    const char *missing(std::uint32_t index) const noexcept
    {
        return oh_sampler_missing(handle_(), index);
    }

    /* See oh_sampler_register_again. */
    bool register_again() noexcept
    {
        return oh_sampler_register_again(handle_()) == 1;
    }

  private:
#ifndef OVERHEAR_DISABLE
    oh_sampler *handle_() const noexcept
    {
        return registered_;
    }

    void swap_(sampler &other) noexcept
    {
        std::swap(registered_, other.registered_);
    }

    int open(oh_sampler_options settings, const char *instance) noexcept
    {
        if (instance != nullptr)
            settings.instance = instance;
        return oh_sampler_register(&registered_, &settings);
    }

    oh_sampler *registered_ = nullptr;
#else
    oh_sampler *handle_() const noexcept
    {
        return nullptr;
    }

    void swap_(sampler &) noexcept {}

    int open(const oh_sampler_options &, const char *) noexcept
    {
        return 0;
    }
#endif
};

} // namespace overhear

#endif /* OVERHEAR_SAMPLER_HPP */
