// SPDX-License-Identifier: MIT OR Apache-2.0
//! What a metric over kernel sensors does for the first time, done before its guarantee begins: threads that
//! nobody has live through whatever the streams can tell of them, and end.
//!
//! The engine makes an automaton when it hears of a thread and takes it back when that has ended, and it learns
//! what a stream means by its first element. So what a rehearsal leaves behind is memory and knowledge.

use overhear_event::kernel::{Life, SCHED_SWITCH, TASK_LIFE};
use overhear_event::{ElementView, Origin, StreamDescriptor, Timestamp, TypeSchema};

/// Thread ids that no kernel gives: they end at 2^22.
const FIRST_THREAD: u32 = 1 << 30;
/// Elements of a stream of which each thread is told.
const SCENES: u64 = 64;
/// What numbers that are no threads can be: kinds, and bits of flags and of states.
const NUMBERS: [u64; 10] = [0, 1, 2, 3, 4, 5, 6, 7, 8, u64::MAX];
/// The state of a thread that will never run again.
const DEAD: u64 = 0x80;

/// The kernel streams that a metric has got to know.
#[derive(Debug, Default)]
pub(super) struct Rehearsal {
    streams: Vec<StreamDescriptor>,
}

impl Rehearsal {
    pub(super) fn open(&mut self, stream: &StreamDescriptor) {
        if matches!(stream.origin, Origin::Kernel { .. }) {
            self.streams.push(stream.clone());
        }
    }

    /// Plays the lives of so many threads, before all time: no gap reaches back to them.
    pub(super) fn play(&self, threads: u32, mut hear: impl FnMut(&ElementView<'_>)) {
        // Lives say more than what their numbers are: who takes over whose id.
        let scenes = self.streams.iter().filter(|it| it.sensor != TASK_LIFE);
        let scenes: Vec<&StreamDescriptor> = scenes.collect();
        if scenes.is_empty() {
            return;
        }
        let mut chance = Chance(1);
        let mut tell = |stream: &StreamDescriptor, number: &mut dyn FnMut(&str) -> u64| {
            let payload = payload(&stream.schema, number);
            hear(&ElementView {
                stream,
                sequence: 0,
                time: Timestamp::ZERO,
                payload: &payload,
            });
        };
        let all = FIRST_THREAD..FIRST_THREAD + threads;
        for _ in 0..SCENES {
            // All of them begin before one ends, so that there are as many at once.
            for thread in all.clone() {
                let stream = scenes[chance.below(scenes.len())];
                tell(stream, &mut |name| match is_thread(name) {
                    true => thread.into(),
                    false => NUMBERS[chance.below(NUMBERS.len())],
                });
            }
        }
        for stream in &self.streams {
            for thread in all.clone() {
                match stream.sensor.as_str() {
                    SCHED_SWITCH => tell(stream, &mut |name| match name {
                        "prev_tid" => thread.into(),
                        "prev_state" => DEAD,
                        // Departed.
                        "flags" => 2,
                        _ => 0,
                    }),
                    TASK_LIFE => tell(stream, &mut |name| match name {
                        "kind" => Life::EXIT.into(),
                        name if is_thread(name) => thread.into(),
                        _ => 0,
                    }),
                    _ => break,
                }
            }
        }
    }
}

fn is_thread(field: &str) -> bool {
    field == "tid" || field.ends_with("_tid")
}

/// A payload whose fields have these numbers, as far as they have room.
fn payload(schema: &TypeSchema, number: &mut dyn FnMut(&str) -> u64) -> Vec<u8> {
    let mut payload = vec![0; schema.size() as usize];
    for field in schema.fields() {
        let (offset, size) = (field.offset as usize, field.kind.size() as usize);
        let bytes = number(&field.name).to_ne_bytes();
        let little_end = &bytes[..size.min(bytes.len())];
        payload[offset..offset + little_end.len()].copy_from_slice(little_end);
    }
    payload
}

/// Numbers without a pattern, the same in every rehearsal (xorshift).
struct Chance(u64);

impl Chance {
    fn below(&mut self, limit: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % limit.max(1) as u64) as usize
    }
}
