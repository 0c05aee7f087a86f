/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Updates that the suite `sensors` loads: correct and faulty ones. */
#include <stdexcept>

#include <overhear/update.hpp>

struct sample {
    std::uint64_t number;
    double load;
    std::int32_t change;
    char word[4];
};
OVERHEAR_FIELDS(sample, "sample", OVERHEAR_FIELD(number, ""), OVERHEAR_FIELD(load, "%"),
                OVERHEAR_FIELD(change, "K"), OVERHEAR_FIELD(word, ""));

struct swapped {
    double load;
    std::uint64_t number;
    std::int32_t change;
    char word[4];
};
OVERHEAR_FIELDS(swapped, "sample", OVERHEAR_FIELD(load, "%"), OVERHEAR_FIELD(number, ""),
                OVERHEAR_FIELD(change, "K"), OVERHEAR_FIELD(word, ""));

/* Reads payloads as their own type, and gets its streams and the time. */
class typed : public overhear::update {
  public:
    explicit typed(const char *argument) : said(argument) {}
    void open(const oh_stream &stream) override
    {
        streams++;
        label = stream.label;
    }
    void element(const oh_element_view &element) override
    {
        sum += overhear::payload_of<sample>(element).number;
    }
    void advance(std::uint64_t now_ns) override { has_ended = now_ns == UINT64_MAX || has_ended; }
    void report(overhear::report &report) override
    {
        report.set("sum", sum);
        report.set("said", said);
        report.set("streams", streams);
        report.set("of_a_program", label.find("/pace") != std::string::npos);
        report.set("half", 0.5);
        report.set("below", -3);
        report.set_json("document", "{\"list\": [1, 2]}");
    }

  protected:
    std::string said, label;
    std::uint64_t sum = 0, streams = 0;
    bool has_ended = false;
};

class throwing : public typed {
  public:
    using typed::typed;
    void element(const oh_element_view &) override
    {
        if (++sum == 3)
            throw std::runtime_error("the third is too much");
    }
};

class careless : public typed {
  public:
    using typed::typed;
    void report(overhear::report &report) override { report.set_json("broken", "{"); }
};

static int at_third(void *self, oh_host *, const oh_element_view *) noexcept
{
    return ++*static_cast<int *>(self) == 3 ? 7 : 0;
}

/* By hand, as in C: returns a failure without a message. */
static constexpr oh_update by_hand()
{
    oh_update raw{};
    raw.size = sizeof raw;
    raw.name = "silent";
    raw.create = [](oh_host *, const char *) noexcept -> void * { return new int(0); };
    raw.element = at_third;
    raw.destroy = [](void *self) noexcept { delete static_cast<int *>(self); };
    return raw;
}

static constexpr oh_update updates[] = {
    overhear::exported_for<typed, sample>("typed", "*/pace"),
    overhear::exported_for<typed, swapped>("mistyped", "*/pace"),
    overhear::exported<throwing>("throwing"),
    overhear::exported<careless>("careless"),
    overhear::exported<typed>("lost", "[/x"),
    by_hand(),
    overhear::exported_for<typed, sample>("elsewhere", "*/lace"),
};
OH_EXPORT_UPDATES(&updates[0], &updates[1], &updates[2], &updates[3], &updates[4], &updates[5],
                  &updates[6])
