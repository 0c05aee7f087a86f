// SPDX-License-Identifier: MIT OR Apache-2.0
//! What kept a budget from having its effect, as messages for the user.

use overhear_budget::{Overhead, UnavoidableOverhead};

/// Problems of a budget, from its begin to its end.
#[derive(Debug, Default)]
pub(super) struct Problems {
    messages: Vec<String>,
    /// Whether a sensor has appeared, and one that can be switched.
    has_sensor: bool,
    has_switch: bool,
    /// Most sensors that were to be off and stayed on, because another monitor needs them.
    kept_on: u32,
    /// Overhead that no switch can avoid, if it exceeded the target before the last tick.
    unavoidable: Option<UnavoidableOverhead>,
}

impl Problems {
    /// Adds a message that is not there yet.
    pub(super) fn note(&mut self, message: impl ToString) {
        let message = message.to_string();
        if !self.messages.contains(&message) {
            self.messages.push(message);
        }
    }

    /// A sensor takes part in the budget; `has_switch` is whether one of all can be switched.
    pub(super) fn add_sensor(&mut self, has_switch: bool) {
        self.has_sensor = true;
        self.has_switch |= has_switch;
    }

    /// This number of sensors stays on at a switch, because another monitor needs them.
    pub(super) fn keep_on(&mut self, sensors: u32) {
        self.kept_on = self.kept_on.max(sensors);
    }

    /// What no switch can avoid, if it exceeded the target before the last tick.
    pub(super) fn exceed(&mut self, unavoidable: Option<UnavoidableOverhead>) {
        self.unavoidable = unavoidable;
    }

    /// All messages. `has_cpu_time` is false if programs wrote, and their CPU time cannot be read.
    pub(super) fn finish(mut self, target: Overhead, has_cpu_time: bool) -> Vec<String> {
        if !self.has_sensor {
            self.note(
                "the budget has no source that can be switched: no program had a sensor; add one, \
                 or leave out the budget",
            );
        } else if !self.has_switch {
            self.note(
                "the budget has no source that can be switched: all sensors are always on; remove \
                 `always` of one of them in [[budget.sensor]], or leave out the budget",
            );
        } else if !has_cpu_time {
            self.note(
                "the budget had no effect: the CPU time of the programs cannot be read; run \
                 overhear in their PID namespace",
            );
        }
        if let Some(unavoidable) = self.unavoidable {
            self.note(unavoidable_message(&unavoidable, target));
        }
        let kept_on = match self.kept_on {
            0 => None,
            1 => Some("1 sensor stayed".to_string()),
            more => Some(format!("{more} sensors stayed")),
        };
        if let Some(sensors) = kept_on {
            self.note(format!(
                "{sensors} on although the budget had them off, because a monitor without a budget \
                 needs all of their elements"
            ));
        }
        self.messages
    }
}

fn unavoidable_message(overhead: &UnavoidableOverhead, target: Overhead) -> String {
    let [always_on, counting] = [overhead.always_on, overhead.own].map(|it| it * 100.0);
    if counting > 0.0 {
        return format!(
            "the budget cannot be kept: sensors that are always on take {always_on:.2} % of the CPU \
             time, and counting the events of kernel sensors that are off takes {counting:.2} %; \
             leave out some of them"
        );
    }
    format!(
        "sensors that are always on cost {always_on:.2} %, more than the budget of {target}; \
         raise it, or let it switch more sensors"
    )
}

#[cfg(test)]
mod tests {
    use overhear_budget::{Overhead, UnavoidableOverhead};

    use super::Problems;

    fn messages(prepare: impl FnOnce(&mut Problems), has_cpu_time: bool) -> String {
        let mut problems = Problems::default();
        prepare(&mut problems);
        let target = Overhead::from_percent(5.0).unwrap();
        problems.finish(target, has_cpu_time).join("\n")
    }

    #[test]
    fn budget_without_a_switch_is_named_once() {
        assert!(messages(|_| (), false).contains("no program had a sensor"));
        let always = messages(|it| it.add_sensor(false), false);
        assert!(always.contains("all sensors are always on"), "{always}");
        assert_eq!(always.lines().count(), 1);
        let unread = messages(|it| it.add_sensor(true), false);
        assert!(unread.contains("CPU time of the programs cannot be read"));
        assert_eq!(messages(|it| it.add_sensor(true), true), "");
    }

    #[test]
    fn latest_excess_and_greatest_number_are_named() {
        let text = messages(
            |it| {
                it.add_sensor(true);
                for always_on in [0.061, 0.07] {
                    it.exceed(Some(UnavoidableOverhead {
                        always_on,
                        base: 0.0,
                        own: 0.0,
                    }));
                }
                it.keep_on(2);
                it.keep_on(1);
                it.note("refused");
                it.note("refused");
            },
            true,
        );
        let expected = "refused\n\
            sensors that are always on cost 7.00 %, more than the budget of 5 %; raise it, or \
            let it switch more sensors\n\
            2 sensors stayed on although the budget had them off, because a monitor without a budget \
            needs all of their elements";
        assert_eq!(text, expected);
    }
}
