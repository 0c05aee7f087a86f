// SPDX-License-Identifier: MIT OR Apache-2.0
//! Several updates in one monitor: the items of each, and its first and last call.

mod support;

use std::sync::mpsc::{channel, Sender};
use std::thread::ThreadId;
use std::time::Duration;

use overhear_event::{
    Analysis, ElementView, EventName, Gap, GapCause, Nanos, StreamDescriptor, Timestamp,
};
use overhear_monitor::{
    AddError, Binding, Group, MissedPolicy, Monitor, Start, Subscription, UpdateSet, UpdateState,
    WaitError, MOST_UPDATES,
};

use support::{at, descriptor, ring, schema};

/// Records its calls.
#[derive(Debug, Default, PartialEq)]
struct Received {
    elements: Vec<(u64, String, u64)>,
    gaps: Vec<(u64, GapCause)>,
    opened: Vec<String>,
    advanced: Option<Timestamp>,
}

impl Analysis for Received {
    fn open(&mut self, stream: &StreamDescriptor) {
        self.opened.push(stream.sensor.clone());
    }

    fn element(&mut self, element: &ElementView<'_>) {
        let value = element.field("value").and_then(|value| value.as_u64());
        self.elements.push((
            element.time.as_monotonic_ns(),
            element.stream.sensor.clone(),
            value.unwrap_or_default(),
        ));
    }

    fn gap(&mut self, _: &StreamDescriptor, gap: &Gap) {
        self.gaps.push((gap.missed, gap.cause));
    }

    fn advance(&mut self, now: Timestamp) {
        self.advanced = Some(now);
    }
}

fn only(sensor: &str) -> Subscription {
    Subscription::all().events([EventName::user(sensor)].into())
}

fn received(elements: &[(u64, &str, u64)]) -> Vec<(u64, String, u64)> {
    let owned = |(time, sensor, value): &(u64, &str, u64)| (*time, sensor.to_string(), *value);
    elements.iter().map(owned).collect()
}

#[test]
fn update_gets_its_sensors_in_order_of_time() {
    let (mut a, source_a) = ring(descriptor(1, "a", 64));
    let (mut b, source_b) = ring(descriptor(2, "b", 64));
    let mut monitor = Monitor::new(Nanos::from_ns(0));
    monitor.add_source(Box::new(source_a));
    monitor.add_source(Box::new(source_b));
    let mut set = UpdateSet::new();
    let all = set.add(Received::default(), Binding::new("all")).unwrap();
    let some = Binding::new("b alone").subscribe(only("b"));
    let some = set.add(Received::default(), some).unwrap();
    let globbed = Subscription::all().matching(|stream| stream.sensor.starts_with('a'));
    let globbed = Binding::new("a*").subscribe(globbed);
    let globbed = set.add(Received::default(), globbed).unwrap();
    b.write(10, 1);
    a.write(20, 2);
    b.write(30, 3);
    monitor.finish(at(100), &mut set);
    drop(set);
    let all = all.take().unwrap();
    assert_eq!(
        all.elements,
        received(&[(10, "b", 1), (20, "a", 2), (30, "b", 3)])
    );
    assert_eq!(all.opened, ["a", "b"]);
    let some = some.take().unwrap();
    assert_eq!(some.elements, received(&[(10, "b", 1), (30, "b", 3)]));
    assert_eq!(some.opened, ["b"]);
    let globbed = globbed.take().unwrap();
    assert_eq!(globbed.elements, received(&[(20, "a", 2)]));
    assert_eq!(globbed.advanced, Some(Timestamp::MAX));
}

/// Counts how often it was warmed up, and may panic then.
#[derive(Default)]
struct Warmed {
    times: u64,
    breaks: bool,
}

impl Analysis for Warmed {
    fn warm_up(&mut self) {
        assert!(!self.breaks, "too cold");
        self.times += 1;
    }

    fn element(&mut self, _: &ElementView<'_>) {}

    fn gap(&mut self, _: &StreamDescriptor, _: &Gap) {}

    fn advance(&mut self, _: Timestamp) {}
}

#[test]
fn update_added_after_the_warm_up_is_warmed_up() {
    let mut set = UpdateSet::new();
    let supervisor = set.supervisor();
    let broken = || Warmed {
        breaks: true,
        ..Warmed::default()
    };
    let first = set.add(Warmed::default(), Binding::new("first")).unwrap();
    let bad = set.add(broken(), Binding::new("bad")).unwrap();
    set.warm_up();
    let guest = supervisor.add(Warmed::default(), Binding::new("guest"));
    let (guest, worse) = (
        guest.unwrap(),
        supervisor.add(broken(), Binding::new("worse")),
    );
    // It has no position until the end of a round.
    assert!(set.get_mut(&guest).is_none());
    set.advance(at(1));
    assert_eq!(set.get_mut(&guest).map(|it| it.times), Some(1));
    assert!(UpdateSet::new().get_mut(&guest).is_none());
    let cold = UpdateState::Failed("it panicked: too cold".to_string());
    assert_eq!(bad.status().state, cold);
    assert_eq!(worse.unwrap().status().state, cold);
    drop(set);
    assert_eq!(first.take().map(|it| it.times), Some(1));
    assert_eq!(guest.take().map(|it| it.times), Some(1));
}

#[test]
fn added_and_removed_updates_do_not_affect_others() {
    let (mut a, source_a) = ring(descriptor(1, "a", 64));
    let (mut b, source_b) = ring(descriptor(2, "b", 64));
    let mut monitor = Monitor::new(Nanos::from_ns(0));
    monitor.add_source(Box::new(source_a));
    let mut set = UpdateSet::new();
    let supervisor = set.supervisor();
    let staying = set
        .add(Received::default(), Binding::new("staying"))
        .unwrap();

    a.write(10, 1);
    monitor.round(at(20), &mut set);
    // From another thread, as the end of a round.
    let guest = std::thread::spawn(move || {
        let guest = supervisor.add(Received::default(), Binding::new("guest"));
        guest.unwrap()
    });
    let guest = guest.join().unwrap();
    assert_eq!(guest.status().state, UpdateState::Waiting);
    set.settle();
    let key = monitor.add_source(Box::new(source_b));
    a.write(30, 2);
    b.write(31, 3);
    monitor.round(at(40), &mut set);
    assert_eq!(guest.status().state, UpdateState::Running);
    assert_eq!(guest.status().elements, 2);
    assert_eq!(guest.take(), None, "it is still in use");
    guest.remove();
    a.write(50, 4);
    monitor.round(at(60), &mut set);
    assert_eq!(guest.status().state, UpdateState::Removed);
    // The sensor ends as well; no monitor receives later writes to it.
    assert!(monitor.remove_source(key).is_some());
    assert!(monitor.remove_source(key).is_none());
    b.write(70, 5);
    a.write(71, 6);
    monitor.finish(at(80), &mut set);

    // Removal took effect at the end of the current round.
    let elements = guest.take().unwrap().elements;
    assert_eq!(
        elements,
        received(&[(30, "a", 2), (31, "b", 3), (50, "a", 4)])
    );
    assert!(guest.take().is_none(), "it is given back once");
    assert_eq!(staying.status().elements, 5);
    drop(set);
    let elements = staying.take().unwrap().elements;
    let expected = [
        (10, "a", 1),
        (30, "a", 2),
        (31, "b", 3),
        (50, "a", 4),
        (71, "a", 6),
    ];
    assert_eq!(elements, received(&expected));
    assert_eq!(monitor.losses().missed(), 0);
}

#[test]
fn start_discards_older_and_earlier_missed_elements() {
    let (mut a, source) = ring(descriptor(1, "a", 4));
    let mut monitor = Monitor::new(Nanos::from_ns(0));
    monitor.add_source(Box::new(source));
    let mut set = UpdateSet::new();
    let binding = Binding::new("late").start(Start::At(at(60)));
    let strict = binding.on_missed(MissedPolicy::Stop);
    let late = set.add(Received::default(), strict).unwrap();
    let early = set.add(Received::default(), Binding::new("early")).unwrap();
    // Capacity for three: two are overwritten unread.
    for (index, time) in [10, 20, 30, 40, 50].into_iter().enumerate() {
        a.write(time, index as u64);
    }
    monitor.round(at(55), &mut set);
    a.write(60, 5);
    monitor.round(at(70), &mut set);
    assert_eq!(late.status().missed, 0);
    assert_eq!(early.status().missed, 2);
    drop(set);
    let late = late.take().unwrap();
    assert_eq!(late.elements, received(&[(60, "a", 5)]));
    assert_eq!(late.gaps, []);
    let early = early.take().unwrap();
    assert_eq!(early.elements.len(), 4);
    assert_eq!(early.gaps, [(2, GapCause::Overwritten)]);
}

#[test]
fn missed_elements_stop_an_update_or_are_counted() {
    let (mut a, source_a) = ring(descriptor(1, "a", 4));
    let (mut b, source_b) = ring(descriptor(2, "b", 64));
    let mut monitor = Monitor::new(Nanos::from_ns(0));
    monitor.add_source(Box::new(source_a));
    monitor.add_source(Box::new(source_b));
    let mut set = UpdateSet::new();
    let stop = |name| Binding::new(name).on_missed(MissedPolicy::Stop);
    let stopped = set.add(Received::default(), stop("stopped")).unwrap();
    let other = stop("of b").subscribe(only("b"));
    let other = set.add(Received::default(), other).unwrap();
    let counting = set
        .add(Received::default(), Binding::new("counting"))
        .unwrap();
    a.write(10, 0);
    monitor.round(at(15), &mut set);
    for time in [20, 30, 40, 50, 60] {
        a.write(time, time);
    }
    b.write(55, 1);
    monitor.round(at(70), &mut set);
    let UpdateState::Stopped(gap) = stopped.status().state else {
        panic!("{:?}", stopped.status());
    };
    assert_eq!((gap.first, gap.missed), (1, 2));
    assert_eq!((gap.from, gap.to), (at(10), at(40)));
    assert!(!set.is_idle());
    monitor.finish(at(90), &mut set);
    // It received the gap, and nothing after it.
    assert_eq!(stopped.status().elements, 1);
    assert_eq!(other.status().state, UpdateState::Running);
    assert_eq!(other.status().elements, 1);
    let counted = counting.status();
    assert_eq!((counted.elements, counted.missed, counted.gaps), (5, 2, 1));
    drop(set);
    assert_eq!(stopped.take().unwrap().gaps, [(2, GapCause::Overwritten)]);
    assert!(matches!(stopped.status().state, UpdateState::Stopped(_)));
}

#[test]
fn missed_elements_stop_no_update_before_the_guarantee() {
    let (mut a, source) = ring(descriptor(1, "a", 4));
    let mut monitor = Monitor::new(Nanos::from_ns(0));
    monitor.add_source(Box::new(source));
    let mut set = UpdateSet::new().lenient();
    let binding = Binding::new("strict").on_missed(MissedPolicy::Stop);
    let strict = set.add(Received::default(), binding).unwrap();
    (1..=5).for_each(|time| a.write(time, time));
    monitor.round(at(10), &mut set);
    let status = strict.status();
    assert_eq!((status.state, status.missed), (UpdateState::Running, 2));
    set.supervisor().enforce();
    monitor.round(at(20), &mut set);
    (21..=25).for_each(|time| a.write(time, time));
    monitor.round(at(30), &mut set);
    assert!(matches!(strict.status().state, UpdateState::Stopped(_)));
    drop(set);
    let gap = (2, GapCause::Overwritten);
    assert_eq!(strict.take().unwrap().gaps, [gap, gap]);
}

#[test]
fn elements_of_another_type_are_refused_with_a_message() {
    let (mut a, source) = ring(descriptor(1, "a", 64));
    let mut monitor = Monitor::new(Nanos::from_ns(0));
    monitor.add_source(Box::new(source));
    let mut set = UpdateSet::new();
    let expecting = |id| Subscription::all().expecting((*schema(id)).clone());
    let right = Binding::new("right").subscribe(expecting("a"));
    let right = set.add(Received::default(), right).unwrap();
    let wrong = Binding::new("wrong").subscribe(expecting("b"));
    let wrong = set.add(Received::default(), wrong).unwrap();
    a.write(10, 1);
    monitor.finish(at(20), &mut set);
    assert_eq!(right.status().elements, 1);
    assert_eq!(right.status().complaints, [""; 0]);
    assert_eq!(wrong.status().elements, 0);
    assert_eq!(
        wrong.status().complaints,
        [
            "update `wrong`: program(4711)/a writes type `a` of 8 bytes (value U64), and the \
             update evaluates type `b` of 8 bytes (value U64): nothing of this sensor is \
             evaluated by it"
        ]
    );
}

/// Panics at its second element.
struct Fragile(u64);

impl Analysis for Fragile {
    fn element(&mut self, _: &ElementView<'_>) {
        self.0 += 1;
        assert!(self.0 < 2, "the second was too much");
    }
    fn gap(&mut self, _: &StreamDescriptor, _: &Gap) {}
    fn advance(&mut self, _: Timestamp) {}
}

#[test]
fn panic_ends_one_update_and_is_reported() {
    let (mut a, source) = ring(descriptor(1, "a", 64));
    let mut monitor = Monitor::new(Nanos::from_ns(0));
    monitor.add_source(Box::new(source));
    let mut set = UpdateSet::new();
    let fragile = set.add(Fragile(0), Binding::new("fragile")).unwrap();
    let sound = set.add(Received::default(), Binding::new("sound")).unwrap();
    (1..=3).for_each(|time| a.write(time, time));
    monitor.finish(at(20), &mut set);
    let failed = UpdateState::Failed("it panicked: the second was too much".to_string());
    assert_eq!(fragile.status().state, failed);
    assert_eq!(fragile.status().elements, 2);
    assert_eq!(sound.status().elements, 3);
}

/// Records the thread in which it is dropped.
struct Mortal(Sender<ThreadId>);

impl Analysis for Mortal {
    fn element(&mut self, _: &ElementView<'_>) {}
    fn gap(&mut self, _: &StreamDescriptor, _: &Gap) {}
    fn advance(&mut self, _: Timestamp) {}
}

impl Drop for Mortal {
    fn drop(&mut self) {
        let _ = self.0.send(std::thread::current().id());
    }
}

#[test]
fn update_is_destroyed_with_its_last_reference_outside_rounds() {
    let mut set = UpdateSet::new();
    let supervisor = set.supervisor();
    let (deaths, death) = channel();
    let (go, gone) = (channel::<()>(), channel::<()>());
    let (request, requested) = go;
    let (done, is_done) = gone;
    let evaluating = std::thread::spawn(move || {
        let mut monitor = Monitor::new(Nanos::from_ns(0));
        while requested.recv().is_ok() {
            monitor.round(at(1), &mut set);
            done.send(()).unwrap();
        }
    });
    let round = || {
        request.send(()).unwrap();
        is_done.recv().unwrap();
    };
    let update = |name| supervisor.add(Mortal(deaths.clone()), Binding::new(name));
    let held = update("held").unwrap();
    let forgotten = update("forgotten").unwrap();
    round();
    held.remove();
    forgotten.remove();
    drop(forgotten);
    round();
    // Removed, and not reaped: nothing is destroyed in the round.
    assert!(death.try_recv().is_err());
    assert_eq!(supervisor.reap(), 2);
    let here = std::thread::current().id();
    assert_eq!(death.try_recv(), Ok(here));
    assert!(death.try_recv().is_err(), "one is still referred to");
    let second = held.clone();
    drop(held);
    assert!(death.try_recv().is_err());
    drop(second);
    assert_eq!(death.try_recv(), Ok(here));
    drop(request);
    evaluating.join().unwrap();
    let gone = supervisor.add(Mortal(deaths.clone()), Binding::new("too late"));
    assert!(matches!(gone, Err(AddError::Ended { .. })));
}

#[test]
fn program_waits_until_its_element_has_been_evaluated() {
    let (mut a, source) = ring(descriptor(1, "a", 64));
    let mut monitor = Monitor::new(Nanos::from_ns(5));
    monitor.add_source(Box::new(source));
    let mut set = UpdateSet::new();
    let supervisor = set.supervisor();
    let update = set.add(Received::default(), Binding::new("heard")).unwrap();
    a.write(10, 1);
    let not_yet = supervisor.wait_evaluated(at(11), Duration::ZERO);
    let (until, reached) = (at(11), at(0));
    assert_eq!(not_yet, Err(WaitError::TimedOut { until, reached }));

    let (sender, waiting) = channel();
    let waiter = {
        let (supervisor, update) = (supervisor.clone(), update.clone());
        std::thread::spawn(move || {
            sender.send(()).unwrap();
            let reached = supervisor.wait_evaluated(at(11), Duration::from_secs(600));
            (reached, update.status().elements)
        })
    };
    waiting.recv().unwrap();
    // The hold-back keeps it until 15, then rounds continue until the waiter has read it.
    monitor.round(at(14), &mut set);
    assert_eq!(supervisor.evaluated(), at(9));
    let mut now = 16;
    while !waiter.is_finished() {
        monitor.round(at(now), &mut set);
        now += 1;
        std::thread::yield_now();
    }
    let (reached, elements) = waiter.join().unwrap();
    assert!(reached.unwrap() >= at(11));
    assert_eq!(elements, 1);
    drop(set);
    let never = supervisor.wait_evaluated(at(1_000_000), Duration::from_secs(600));
    assert!(matches!(never, Err(WaitError::Ended { .. })));
}

#[test]
fn full_set_refuses_an_update() {
    let mut set = UpdateSet::new();
    for _ in 0..MOST_UPDATES {
        let _ = set.add(Received::default(), Binding::new("one")).unwrap();
    }
    let error = set
        .add(Received::default(), Binding::new("more"))
        .unwrap_err();
    let message = "update `more`: a set has room for 64 updates; use another set";
    assert_eq!(error.to_string(), message);
    let late = set
        .supervisor()
        .add(Received::default(), Binding::new("late"));
    let late = late.unwrap();
    set.settle();
    let why = "there is no place for another update in its set".to_string();
    assert_eq!(late.status().state, UpdateState::Failed(why));
}

#[test]
fn functions_of_a_group_share_a_context() {
    let (mut a, source_a) = ring(descriptor(1, "enter", 4));
    let (mut b, source_b) = ring(descriptor(2, "leave", 64));
    let mut monitor = Monitor::new(Nanos::from_ns(0));
    monitor.add_source(Box::new(source_a));
    monitor.add_source(Box::new(source_b));
    let inside = |by: i64| {
        move |inside: &mut (i64, i64), _: &ElementView<'_>| {
            inside.0 += by;
            inside.1 = inside.1.max(inside.0);
        }
    };
    let mut group = Group::new((0_i64, 0_i64))
        .on(only("enter"), inside(1))
        .on(only("leave"), inside(-1))
        .on_gap(|inside, _, gap| inside.0 += gap.missed as i64);
    a.write(10, 0);
    a.write(20, 0);
    b.write(25, 0);
    a.write(30, 0);
    b.write(40, 0);
    monitor.round(at(50), &mut group);
    assert_eq!(*group.context(), (1, 2));
    (60..65).for_each(|time| a.write(time, 0));
    monitor.finish(at(90), &mut group);
    assert_eq!(group.into_context(), (6, 6));
}
