// SPDX-License-Identifier: MIT OR Apache-2.0
//! The monitoring framework inside an application: a player that keeps its pictures coming.
//!
//! ```text
//! cargo run -p overhear --example player
//! ```
//!
//! The player has a directory, sensors and a monitor of its own; no other program is needed. The
//! monitor counts the frames that came too late, and after ten of them it has the player lower its
//! quality, which makes decoding cheaper (the example of [GRTMon, section 3.5]). The player knows
//! nothing of how that is decided, and the sensor costs it some 10 ns per frame.
//!
//! Here a frame's cost is simulated: a number, no work, so that the outcome is the same on any
//! machine.

use std::sync::mpsc::{channel, Receiver, Sender};
use std::thread;
use std::time::Duration;

use overhear::{Element, Sensor};
use overhear_directory::{
    monotonic_now, Begin, Directory, MonitorConnection, Query, SOCKET_VARIABLE,
};
use overhear_event::{ElementView, EventName, Gap, StreamDescriptor};
use overhear_monitor::{best_effort, Binding, Group, Monitor, Subscription, UpdateSet, HOLD_BACK};

/// The element of each frame.
#[derive(Element)]
#[repr(C)]
struct Frame {
    number: u64,
    #[field(unit = "us")]
    decoding_us: u32,
    #[field(unit = "us")]
    allowed_us: u32,
}

/// The monitor's model of the player.
#[derive(Default)]
struct Model {
    frames: u64,
    missed: u64,
    since_lowered: u64,
}

/// Ten late frames since the last time are too many.
const MOST_MISSED: u64 = 10;

fn lower_when_late(lower: Sender<()>) -> Group<Model> {
    let frames = Subscription::all()
        .events([EventName::user("frame")].into())
        .expecting(Frame::schema());
    let late = move |model: &mut Model, element: &ElementView<'_>| {
        let field = |name| element.field(name).and_then(|value| value.as_u64());
        model.frames += 1;
        if field("decoding_us") > field("allowed_us") {
            model.missed += 1;
            model.since_lowered += 1;
        }
        if model.since_lowered == MOST_MISSED {
            model.since_lowered = 0;
            // If the receiver is gone, the player has ended.
            let _ = lower.send(());
        }
    };
    let unknown = |model: &mut Model, _: &StreamDescriptor, gap: &Gap| {
        // Frames of which nothing is known count as missed: better a poor picture than none.
        model.missed += gap.missed;
    };
    Group::new(Model::default())
        .on(frames, late)
        .on_gap(unknown)
}

/// Plays until three frames in a row were decoded in time at the quality that was found.
fn play(
    sensor: &mut Sensor<Frame>,
    lowered: &Receiver<()>,
    mut evaluated: impl FnMut(),
) -> (u32, u64) {
    let mut quality = 100;
    let mut in_time = 0;
    for number in 0.. {
        let decoding_us = quality * 400;
        let allowed_us = 20_000;
        sensor.write(&Frame {
            number,
            decoding_us,
            allowed_us,
        });
        // A player that reads from a disk could go on; this one wants to know what its monitor
        // thinks of the frame before it shows the next one.
        evaluated();
        while lowered.try_recv().is_ok() {
            quality -= 30;
            println!("frame {number}: ten frames were late, quality is {quality} now");
        }
        in_time = if decoding_us <= allowed_us {
            in_time + 1
        } else {
            0
        };
        if in_time == 3 {
            return (quality, number + 1);
        }
    }
    unreachable!("frames do not end")
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let socket = std::env::temp_dir().join(format!("player-{}.sock", std::process::id()));
    let directory = Directory::builder().start(&socket)?;
    std::env::set_var(SOCKET_VARIABLE, directory.socket());
    let mut sensor = Sensor::<Frame>::builder("frame").register()?;

    let (lower, lowered) = channel();
    let (stop, stopped) = channel::<()>();
    let mut set = UpdateSet::new();
    let supervisor = set.supervisor();
    let group = set.add(lower_when_late(lower), Binding::new("late frames"))?;
    // Attached before the first frame, so that none is missed.
    let connection = MonitorConnection::connect(&socket)?;
    let source = connection.attach(Query::parse("frame")?, Begin::Now)?;
    let monitor = thread::spawn(move || {
        let mut monitor = Monitor::new(HOLD_BACK);
        monitor.add_source(Box::new(source));
        let go_on = |_: &mut Monitor| stopped.try_recv().is_err();
        let wait = |_| thread::sleep(Duration::from_millis(1));
        best_effort(&mut monitor, &mut set, monotonic_now, wait, go_on);
        monitor.losses().missed()
    });

    let (quality, frames) = play(&mut sensor, &lowered, || {
        let written = supervisor.wait_evaluated(monotonic_now(), Duration::from_secs(600));
        written.expect("the monitor runs");
    });
    stop.send(())?;
    let missed = monitor.join().expect("the monitor does not panic");
    let model = group.take().expect("the set is gone").into_context();
    println!(
        "{frames} frames, {} evaluated, {missed} missed, {} late, quality {quality}",
        model.frames, model.missed
    );
    drop(directory);
    let _ = std::fs::remove_file(&socket);
    Ok(())
}
