// SPDX-License-Identifier: MIT OR Apache-2.0
//! A model from literal elements, keys, and pictures.

use std::collections::BTreeMap;

use overhear_event::{
    Analysis, ElementView, Nanos, Origin, SamplePoint, SampleSchema, StreamDescriptor, StreamId,
};
use overhear_metrics::{RecentSensors, SampleStatistics};
use ratatui::backend::TestBackend;
use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
use ratatui::style::Color;
use ratatui::Terminal;

use super::model::SensorKey;
use super::snapshot::ThreadRow;
use super::{draw, render, sensor_row, tasks, Model, Page, Request, Snapshot};
use crate::format::Format;
use crate::testing::{at, declared_stream, gap, plain_stream, queue_payload};
use crate::text::width::Width;
use overhear_session::budget::{BudgetOutcome, BudgetPoint, BudgetSensor};
use overhear_session::listing::State;
use overhear_session::quantities::{BucketReport, HistogramReport, Quantiles};
use overhear_session::samples;

/// Two sensors for four seconds: `queue` at its declared kilohertz with one gap, `job` at 2 Hz,
/// then without elements and switched off.
fn snapshot() -> Snapshot {
    let (queue, job) = (declared_stream(), plain_stream());
    let mut recent = RecentSensors::new(Nanos::from_ms(500), 4);
    let second = 1_000_000_000;
    for ms in 0..4_000_u64 {
        let time = at(10 * second + ms * 1_000_000);
        if ms == 3_000 {
            let lost = gap(
                &queue,
                ms,
                10,
                time.as_monotonic_ns() - 1_000_000,
                time.as_monotonic_ns(),
            );
            recent.gap(&queue, &lost);
        }
        if !(3_000..3_010).contains(&ms) {
            recent.element(&ElementView {
                stream: &queue,
                sequence: ms,
                time,
                payload: &queue_payload(ms / 500 * 100, 12.5, "a\x1bb"),
            });
        }
        if ms % 500 == 7 && ms < 2_000 {
            recent.element(&ElementView {
                stream: &job,
                sequence: ms / 500,
                time,
                payload: &(ms as i64 - 1_000).to_ne_bytes(),
            });
        }
    }
    recent.advance(at(14 * second));
    let sensors: Vec<_> = recent
        .sensors()
        .map(|(_, sensor)| {
            let on = sensor.stream.sensor == "queue";
            sensor_row(&recent, sensor, if on { State::On } else { State::Off })
        })
        .collect();
    Snapshot {
        overhear_version: "0.1.0".to_string(),
        socket: "/run/overhear/directory.sock".to_string(),
        time_ns: 14 * second,
        window_ns: 2 * second,
        elements: sensors.iter().map(|sensor| sensor.elements).sum(),
        missed: 10,
        complete: false,
        tasks: tasks(&sensors),
        sensors,
        ..Snapshot::default()
    }
}

fn thread(comm: &str, tid: u32, run: f64, latency: u64) -> ThreadRow {
    ThreadRow {
        pid: 4711,
        tid,
        comm: comm.to_string(),
        run,
        runnable: Some(0.01),
        voluntary_hz: 1_000.0,
        involuntary_hz: 2.5,
        migrations: 3,
        wakeup_latency_ns: Some(Quantiles {
            count: 9,
            min: 900,
            median: 2_000,
            p99: 40_000,
            max: latency,
        }),
    }
}

fn model() -> Model {
    let mut model = Model::default();
    model.show(snapshot());
    model
}

fn press(model: &mut Model, keys: &str) -> Option<Request> {
    let mut request = None;
    for key in keys.chars() {
        let code = match key {
            '\n' => KeyCode::Enter,
            '\x1b' => KeyCode::Esc,
            '\t' => KeyCode::Tab,
            '↓' => KeyCode::Down,
            '→' => KeyCode::Right,
            '←' => KeyCode::Left,
            key => KeyCode::Char(key),
        };
        request = model.key(KeyEvent::new(code, KeyModifiers::NONE));
    }
    request
}

fn picture(model: &Model, width: u16, height: u16) -> String {
    let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
    terminal.draw(|frame| draw(frame, model, true)).unwrap();
    let buffer = terminal.backend().buffer().clone();
    let lines: Vec<String> = (0..height)
        .map(|y| {
            let cells = (0..width).map(|x| buffer[(x, y)].symbol().to_string());
            cells.collect::<String>().trim_end().to_string()
        })
        .collect();
    lines.join("\n")
}

fn names(model: &Model) -> Vec<&str> {
    let sensors = model.sensors();
    sensors.iter().map(|s| s.identity.id.as_str()).collect()
}

#[test]
fn sensors_are_shown_wide() {
    insta::assert_snapshot!(picture(&model(), 150, 20), @r#"
        overhear top  10 MISSED!  2 sensors of 1 task  1.00 kHz  3994 elements
         1 Sensors   2 Tasks
        sensor   task               rate   declared  of decl   elements   missed      p50      p99       course               values
        queue#in server(4711)   1.00 kHz   1.00 kHz    100 %       3990      10!  1.00 ms  1.00 ms                   ▄▄▄▄▄▄▄▄ wait 700 ns  load 12.50 %  label
        job      server(4711)    0.00 Hz          -        -          4        0        -        - off                ███▁▁▁▁ number 507








        ┌ server(4711)/queue#in : queue ─────────────────────────────────────────────────────────────────────────────────────────────────────────────────────┐
        │declared T 1.00 ms, D 100 us, tau 5.00 ms: kept                                                                                                     │
        │intervals: min 1.00 ms  p50 1.00 ms  p99 1.00 ms  max 1.00 ms                                                                                       │
        │rate                                                                                                               ▄▄▄▄▄▄▄▄ 1.00 kHz .. 1.00 kHz    │
        │wait 700 ns  load 12.50 %  label a\x1bb                                                                                                             │
        └────────────────────────────────────────────────────────────────────────────────────────────────────────────────────────────────────────────────────┘
        q quit  ? help  Tab page  s sort  / filter  p pause  ←→ course  o on/off
        "#);
}

#[test]
fn sensors_are_shown_narrow() {
    insta::assert_snapshot!(picture(&model(), 60, 12), @r#"
        overhear top  10 MISSED!  2 sensors of 1 task  1.00 kHz  399
         1 Sensors   2 Tasks
        sensor   task               rate  of decl   missed
        queue#in server(4711)   1.00 kHz    100 %      10!
        job      server(4711)    0.00 Hz        -        0 off






        q quit  ? help  Tab page  s sort  / filter  p pause  ←→ cour
        "#);
}

#[test]
fn course_of_a_field_is_shown_on_demand() {
    let mut model = model();
    assert_eq!(press(&mut model, "→"), None);
    insta::assert_snapshot!(picture(&model, 80, 16), @r#"
        overhear top  10 MISSED!  2 sensors of 1 task  1.00 kHz  3994 elements
         1 Sensors   2 Tasks
        sensor   task               rate   declared  of decl   missed      p99
        queue#in server(4711)   1.00 kHz   1.00 kHz    100 %      10!  1.00 ms
        job      server(4711)    0.00 Hz          -        -        0        - off




        ┌ server(4711)/queue#in : queue ───────────────────────────────────────────────┐
        │declared T 1.00 ms, D 100 us, tau 5.00 ms: kept                               │
        │intervals: min 1.00 ms  p50 1.00 ms  p99 1.00 ms  max 1.00 ms                 │
        │wait [ns]                                    ▁▂▃▄▅▆▇█ 0 .. 700                │
        │wait 700 ns  load 12.50 %  label a\x1bb                                       │
        └──────────────────────────────────────────────────────────────────────────────┘
        q quit  ? help  Tab page  s sort  / filter  p pause  ←→ course  o on/off
        "#);
}

#[test]
fn threads_are_shown_and_tasks_where_none_is_followed() {
    let mut model = model();
    assert_eq!(press(&mut model, "\t"), None);
    insta::assert_snapshot!(picture(&model, 80, 8), @r#"
        overhear top  10 MISSED!  2 sensors of 1 task  1.00 kHz  3994 elements
         1 Sensors   2 Tasks
        task          sensors       rate     elements     missed
        server(4711)        2   1.00 kHz         3994        10!



        q quit  ? help  Tab page  s sort  / filter  p pause
        "#);
    let mut snapshot = snapshot();
    snapshot.kernel = "kernel sensors: BPF".to_string();
    snapshot.threads = vec![thread("a", 5, 0.1, 9_000), thread("b", 6, 0.9, 800_000)];
    model.show(snapshot);
    insta::assert_snapshot!(picture(&model, 110, 8), @r#"
        overhear top  10 MISSED!  2 sensors of 1 task  1.00 kHz  3994 elements
         1 Sensors   2 Threads  kernel sensors: BPF
        thread        pid      tid     run▾  runnable    vol/s   invol/s     migr  wake p50      p99      max
        b            4711        6   90.0 %     1.0 %     1000     2.500        3   2.00 us  40.0 us   800 us
        a            4711        5   10.0 %     1.0 %     1000     2.500        3   2.00 us  40.0 us  9.00 us


        q quit  ? help  Tab page  s sort  / filter  p pause
        "#);
}

#[test]
fn help_and_every_size_can_be_drawn() {
    let mut model = model();
    assert_eq!(press(&mut model, "?"), None);
    insta::assert_snapshot!(picture(&model, 80, 20), @r#"
        overhear top  10 MISSED!  2 sensors of 1 task  1.00 kHz  3994 elements
         1 Sensors   2 Tasks
        sensor   task               rate   declared  of decl   missed      p99
        queue┌ help: any key closes it ───────────────────────────────────────────┐
        job  │q, Ctrl-C  quit                 Tab, 1..5  page                     │
             │/          filter by name       Esc        show all again           │
             │s, S       sort by next column  r          reverse the order        │
             │p, Space   stand still          ?          this help                │
             │Up, Down   select a row         Left/Right course of rate or field  │
             │o          switch the selected sensor on or off                     │
             │                                                                    │
             │rate       elements per second, missed ones included                │
             │of decl    share of the declared rate; ! is below 90 %,             │
        ┌ ser│           or elements came earlier than declared                   │────┐
        │decl│missed     written, and not evaluated                               │    │
        │inte│p50, p99   distances of neighbouring elements                       │    │
        │rate└────────────────────────────────────────────────────────────────────┘    │
        │wait 700 ns  load 12.50 %  label a\x1bb                                       │
        └──────────────────────────────────────────────────────────────────────────────┘
        q quit  ? help  Tab page  s sort  / filter  p pause  ←→ course  o on/off
        "#);
    for page in ["1", "2"] {
        for (width, height) in [(1, 1), (2, 30), (30, 2), (80, 3), (300, 90), (20, 16)] {
            let _ = picture(&model, width, height);
            assert_eq!(press(&mut model, page), None);
            let _ = picture(&model, width, height);
        }
    }
    let nothing = picture(&Model::default(), 80, 6);
    assert!(nothing.contains("no sensor matches yet"), "{nothing}");
}

#[test]
fn picture_without_colours_still_marks_errors() {
    for coloured in [true, false] {
        let mut terminal = Terminal::new(TestBackend::new(150, 20)).unwrap();
        terminal
            .draw(|frame| draw(frame, &model(), coloured))
            .unwrap();
        let cells = terminal.backend().buffer().content();
        let used = cells
            .iter()
            .any(|c| c.fg != Color::Reset || c.bg != Color::Reset);
        assert_eq!(used, coloured);
        let text: String = cells.iter().map(|cell| cell.symbol()).collect();
        assert!(
            text.contains("10 MISSED!") && text.contains(" 10! "),
            "{text}"
        );
    }
}

#[test]
fn names_from_programs_cannot_reach_the_terminal_raw() {
    for (width, height) in [(150, 20), (60, 12)] {
        assert!(!picture(&model(), width, height).contains('\x1b'));
    }
}

#[test]
fn rows_are_sorted_filtered_and_followed() {
    let mut model = model();
    assert_eq!(names(&model), ["queue", "job"]);
    assert_eq!(press(&mut model, "s"), None);
    assert_eq!(
        (model.sensor_key, names(&model)),
        (SensorKey::Name, vec!["job", "queue"])
    );
    assert_eq!(press(&mut model, "ss"), None);
    assert_eq!(
        (model.sensor_key, names(&model)),
        (SensorKey::Rate, vec!["queue", "job"])
    );
    assert_eq!(press(&mut model, "r"), None);
    assert_eq!(names(&model), ["job", "queue"]);
    // The selection stays with its sensor when rows move.
    assert_eq!(press(&mut model, "↓"), None);
    assert_eq!(model.selected_sensor().unwrap().identity.id, "queue");
    assert_eq!(press(&mut model, "r"), None);
    assert_eq!(
        (model.selected_row(), names(&model)),
        (0, vec!["queue", "job"])
    );
    assert_eq!(press(&mut model, "/JO\n"), None);
    assert_eq!(names(&model), ["job"]);
    assert_eq!(press(&mut model, "\x1b"), None);
    assert_eq!(names(&model).len(), 2);
    // In the input mode, letters are no commands.
    assert_eq!(press(&mut model, "/q?"), None);
    assert_eq!((model.filter.as_str(), model.help), ("q?", false));
    // Backwards from the first key is the last one.
    model = self::model();
    assert_eq!(press(&mut model, "S"), None);
    assert_eq!(model.sensor_key, SensorKey::Interval);
}

#[test]
fn keys_return_requests() {
    let mut model = model();
    assert_eq!(
        press(&mut model, "o"),
        Some(Request::Switch {
            stream: 3,
            on: false
        })
    );
    assert_eq!(
        press(&mut model, "↓o"),
        Some(Request::Switch {
            stream: 4,
            on: true
        })
    );
    assert_eq!(press(&mut model, "q"), Some(Request::Quit));
    let control_c = KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL);
    assert_eq!(model.key(control_c), Some(Request::Quit));
    assert_eq!(
        press(&mut model, "?q"),
        None,
        "a key closes the help and does nothing else"
    );
    let mut ended = snapshot();
    ended.sensors[1].state = State::Ended;
    model.show(ended);
    assert_eq!(press(&mut model, "o"), None);
    assert_eq!(model.message, "this sensor has ended");
    assert_eq!(
        Model::default().key(KeyEvent::from(KeyCode::Char('o'))),
        None
    );
}

#[test]
fn paused_picture_stands_still() {
    let mut model = model();
    assert_eq!(press(&mut model, "p"), None);
    model.show(Snapshot::default());
    assert_eq!(names(&model).len(), 2);
    assert!(picture(&model, 100, 6).contains(" paused "));
    assert_eq!(press(&mut model, "p"), None);
    model.show(Snapshot::default());
    assert_eq!((names(&model).len(), model.page), (0, Page::Sensors));
}

#[test]
fn snapshot_is_printed_in_every_format() {
    let mut snapshot = snapshot();
    snapshot.threads = vec![thread("a", 5, 0.1, 9_000)];
    insta::assert_snapshot!(render(&snapshot, Format::Text, Width::UNLIMITED), @r#"
        sensor    task              rate  declared  of decl  elements  missed  early  interval p50      p99  state  values
        queue#in  server(4711)  1.00 kHz  1.00 kHz    100 %      3990      10      0       1.00 ms  1.00 ms  on     wait 700 ns  load 12.50 %  label a\x1bb
        job       server(4711)   0.00 Hz         -        -         4       0      -             -        -  off    number 507

        thread   pid  tid     run  runnable  vol/s  invol/s  migr  wake-up p50      p99      max
        a       4711    5  10.0 %     1.0 %   1000    2.500     3      2.00 us  40.0 us  9.00 us
        "#);
    insta::assert_snapshot!(render(&snapshot, Format::Csv, Width::UNLIMITED), @r#"
        task,pid,id,instance,type,state,rate_hz,declared_hz,elements,missed,too_early,interval_p50_ns,interval_p99_ns,interval_max_ns,values
        server(4711),4711,queue,in,queue,on,1000,1000,3990,10,0,1000000,1000000,1000000,wait 700 ns  load 12.50 %  label a\x1bb
        server(4711),4711,job,,job,off,0,,4,0,,,,,number 507
        "#);
    let json = render(&snapshot, Format::Json, Width::UNLIMITED);
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    let queue = &json["sensors"][0];
    assert_eq!(queue["id"], "queue");
    assert_eq!(queue["declared"]["period_ns"], 1_000_000);
    assert_eq!(
        (&queue["missed"], &queue["rate_hz"]),
        (&10.into(), &1000.0.into())
    );
    assert_eq!(queue["values"][0]["value"], 700);
    assert_eq!(json["threads"][0]["run"], 0.1);
    assert_eq!(json["tasks"][0]["sensors"], 2);
}

#[test]
fn distributions_have_a_page_of_their_own() {
    let mut model = model();
    // Without any there is none.
    press(&mut model, "3");
    assert_eq!(model.page, Page::Sensors);
    let histogram = |title: &str, count: u64| HistogramReport {
        title: title.to_string(),
        unit: "ns".to_string(),
        buckets: vec![
            BucketReport {
                low: 0.0,
                high: 9.0,
                count,
            },
            BucketReport {
                low: 10.0,
                high: 19.0,
                count: 2 * count,
            },
        ],
        fractions: false,
    };
    model.snapshot.histograms = vec![histogram("waits: ns", 3), histogram("other: ns", 1)];
    press(&mut model, "\t\t");
    assert_eq!(model.page, Page::Histograms);
    let drawn = picture(&model, 60, 10);
    let bar = |length: usize| "#".repeat(length);
    for line in [
        "3 Histograms",
        "waits: ns [ns]",
        &format!("    0..9 | {} 3", bar(20) + &" ".repeat(20)),
        &format!("  10..19 | {} 6", bar(40)),
        "other: ns [ns]",
    ] {
        assert!(drawn.contains(line), "{line}: {drawn}");
    }
    press(&mut model, "↓");
    let lower = picture(&model, 60, 10);
    assert!(
        lower.contains("other: ns") && !lower.contains("waits: ns"),
        "{lower}"
    );
    press(&mut model, "\t");
    assert_eq!(model.page, Page::Sensors);
}

#[test]
fn budget_has_a_page_with_its_course_and_its_sensors() {
    let mut model = model();
    press(&mut model, "4");
    assert_eq!(model.page, Page::Sensors, "there is no budget");
    let point = |overhead| BudgetPoint {
        from_ns: 0,
        to_ns: 1,
        overhead,
        worst_window: 1.5 * overhead,
    };
    model.snapshot.budget = Some(BudgetOutcome {
        target: 0.05,
        observed: 0.0493,
        observed_error: 0.0011,
        window_ns: 1_000_000_000,
        cpu_ns: 3_000_000_000,
        counting_ns: 0,
        course: [0.0, 0.01, 0.05, 0.049, 0.051, 0.2].map(point).to_vec(),
        sensors: vec![BudgetSensor {
            name: "server(4711)/queue".to_string(),
            written: 400,
            skipped: Some(600),
            share_on: Some(0.4),
            cost_ns: 4_200.0,
            cost_error_ns: 100.0,
            price_ns: 10.5,
            price_error_ns: 0.25,
        }],
    });
    press(&mut model, "4");
    assert_eq!(model.page, Page::Budget);
    insta::assert_snapshot!(picture(&model, 100, 8), @r"
    overhear top  10 MISSED!  budget 5.00 %: 4.93 %  2 sensors of 1 task  1.00 kHz  3994 elements
     1 Sensors   2 Tasks   4 Budget
    target 5.00 %  observed 4.93 % ± 0.11 %  at most 30.00 % in 1.00 s of CPU time
    over time ▁▂▅▄▅█ 0 .. 10.00 %, target in the middle
    sensor                   on     cost▾              price     written     skipped
    server(4711)/queue   40.0 %   4.20 us      10.5 ± 0.2 ns         400         600

    q quit  ? help  Tab page  s sort  / filter  p pause
    ");
    press(&mut model, "\t");
    assert_eq!(model.page, Page::Sensors);
}

/// Two jobs of a sampler in a program.
fn sampled() -> SampleStatistics {
    let schema = SampleSchema::new().count("cycles", "");
    let schema = schema.count("instructions", "").build().unwrap();
    let (id, origin) = (StreamId::from_raw(9), Origin::program(4711, "server"));
    let stream = StreamDescriptor::new(id, origin, "request", schema);
    let mut statistics = SampleStatistics::default();
    for (sequence, cycles) in [(0, 1_000_u64), (1, 3_000)] {
        let words = [4712, 4711, SamplePoint::JobEnd.as_raw(), 0];
        let mut payload: Vec<u8> = words.iter().flat_map(|it| it.to_ne_bytes()).collect();
        for word in [500_000, cycles, 6_000] {
            payload.extend(word.to_ne_bytes());
        }
        statistics.element(&ElementView {
            stream: &stream,
            sequence,
            time: at(500_000 * (sequence + 1)),
            payload: &payload,
        });
    }
    statistics
}

#[test]
fn samples_have_a_page_with_their_tables() {
    let mut model = model();
    press(&mut model, "5");
    assert_eq!(model.page, Page::Sensors, "there are no samplers");
    let comms = BTreeMap::from([(4712, "worker".to_string())]);
    model.snapshot.samplers = samples::of(&sampled(), &comms);
    press(&mut model, "5");
    assert_eq!(model.page, Page::Samples);
    let shown = picture(&model, 110, 20);
    for line in [
        "5 Samples",
        "sampler request of server(4711): 2 samples, 0 missed",
        "worker  4711  4712   1.00 ms  instructions  12000    12000000          3",
        "worker  4712  job  cycles            2    1000    2000    1000    3000    3000    3000",
        "a thread is judged from its job 83 on",
    ] {
        assert!(shown.contains(line), "no {line:?} in {shown}");
    }
    // The tables move up.
    press(&mut model, "↓");
    let moved = picture(&model, 110, 20);
    assert!(
        !moved.contains("sampler request") && moved.contains("instructions"),
        "{moved}"
    );
    let text = render(&model.snapshot, Format::Text, Width::UNLIMITED);
    assert!(text.contains("sampler request of server(4711)"), "{text}");
    let json = render(&model.snapshot, Format::Json, Width::UNLIMITED);
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert_eq!(json["samplers"][0]["tasks"][0]["ipc"], 3.0);
}
