// SPDX-License-Identifier: MIT OR Apache-2.0
//! The costs of sensors of programs, measured with sensors of this process and a directory of its
//! own.

use std::ffi::OsString;
use std::hint::black_box;
use std::path::Path;
use std::time::Instant;

use overhear::{ConcurrentSensor, Element, LanedSensor, Sensor};
use overhear_directory::{Directory, MonitorConnection, ProgramSource, Query, SOCKET_VARIABLE};
use overhear_event::Source;
use overhear_kernel::CountingInbox;

use super::stopwatch::{Patience, Stopwatch};
use super::{Cost, ProgramCost};
use crate::error::{ErrorKind, SessionError};
use crate::scratch::Scratch;

/// Number of elements of one measurement, which takes a fifteenth of a millisecond.
const ELEMENTS: u64 = 6_000;

#[derive(Element)]
#[repr(C)]
struct Number {
    value: u64,
}

/// Writes this number of elements.
type Write = Box<dyn FnMut(u64)>;

struct Kind {
    name: &'static str,
    write: Write,
    on: Vec<f64>,
    off: Vec<f64>,
}

impl Kind {
    fn new(name: &'static str, mut write: impl FnMut(&Number) + 'static) -> Self {
        Self {
            name,
            write: Box::new(move |elements| {
                for value in 0..elements {
                    write(&Number {
                        value: black_box(value),
                    });
                }
            }),
            on: Vec::new(),
            off: Vec::new(),
        }
    }
}

fn time(stopwatch: &mut Stopwatch, write: &mut dyn FnMut(u64)) -> f64 {
    write(ELEMENTS / 10);
    let value = stopwatch.value_of(|| {
        let begun = Instant::now();
        write(ELEMENTS);
        begun.elapsed().as_nanos() as f64 / ELEMENTS as f64
    });
    value.ns
}

/// The variable that names the directory to sensors of this process. Its value from before returns
/// with the drop.
struct Variable(Option<OsString>);

impl Variable {
    fn set(socket: &Path) -> Self {
        let before = std::env::var_os(SOCKET_VARIABLE);
        std::env::set_var(SOCKET_VARIABLE, socket);
        Self(before)
    }
}

impl Drop for Variable {
    fn drop(&mut self) {
        match &self.0 {
            Some(before) => std::env::set_var(SOCKET_VARIABLE, before),
            None => std::env::remove_var(SOCKET_VARIABLE),
        }
    }
}

/// Measures each kind of sensor, and the cost of reading.
pub(crate) fn measure(
    rounds: u64,
    patience: Patience,
) -> Result<(Vec<ProgramCost>, Option<Cost>), SessionError> {
    fn failed(error: impl std::fmt::Display) -> SessionError {
        let message = format!("sensors of programs cannot be calibrated: {error}");
        SessionError::new(ErrorKind::Unavailable, message)
    }
    let scratch = Scratch::create().map_err(failed)?;
    let socket = scratch.path().join("directory.sock");
    let directory = Directory::builder().start(&socket).map_err(failed)?;
    let _variable = Variable::set(&socket);
    let capacity = 2 * ELEMENTS;
    let mut simple = Sensor::<Number>::builder("calibration")
        .instance("simple")
        .capacity(capacity)
        .register()
        .map_err(failed)?;
    let laned = LanedSensor::<Number>::builder("calibration")
        .instance("laned")
        .capacity(capacity)
        .lanes(1)
        .register()
        .map_err(failed)?;
    let concurrent = ConcurrentSensor::<Number>::builder("calibration")
        .instance("concurrent")
        .capacity(capacity)
        .register()
        .map_err(failed)?;
    let refused = [
        simple.not_connected_reason(),
        laned.not_connected_reason(),
        concurrent.not_connected_reason(),
    ];
    if let Some(reason) = refused.into_iter().flatten().next() {
        return Err(failed(reason));
    }
    let mut kinds = [
        Kind::new("simple", move |element| simple.write(element)),
        Kind::new("laned", move |element| {
            let _ = laned.write(element);
        }),
        Kind::new("concurrent", move |element| {
            let _ = concurrent.write(element);
        }),
    ];
    let mut connection = MonitorConnection::connect(&socket).map_err(failed)?;
    // A first request within two seconds makes the connection that of a monitor; a loop may take
    // longer on a busy machine.
    connection
        .set_enabled(&Query::all(), true)
        .map_err(failed)?;
    let mut source = ProgramSource::new(&directory);
    let mut empty = |elements: u64| {
        for value in 0..elements {
            black_box(&Number {
                value: black_box(value),
            });
        }
    };
    let mut stopwatch = Stopwatch::new(patience);
    let mut reading = Vec::new();
    for _ in 0..rounds {
        stopwatch.update_speed();
        let base = time(&mut stopwatch, &mut empty);
        for kind in &mut kinds {
            let spent = time(&mut stopwatch, &mut *kind.write);
            kind.on.push(spent - base);
        }
        let mut count = CountingInbox::default();
        let begun = Instant::now();
        source.poll(&mut count).map_err(failed)?;
        let spent = begun.elapsed().as_nanos() as f64;
        if count.elements > 0 {
            reading.push(spent / count.elements as f64);
        }
        connection
            .set_enabled(&Query::all(), false)
            .map_err(failed)?;
        for kind in &mut kinds {
            let spent = time(&mut stopwatch, &mut *kind.write);
            kind.off.push(spent - base);
        }
        connection
            .set_enabled(&Query::all(), true)
            .map_err(failed)?;
    }
    let costs = kinds.iter().filter_map(|kind| {
        Some(ProgramCost {
            kind: kind.name.to_string(),
            write: Cost::of(&kind.on)?,
            switched_off: Cost::of(&kind.off)?,
        })
    });
    Ok((costs.collect(), Cost::of(&reading)))
}
