// SPDX-License-Identifier: MIT OR Apache-2.0
//! Whether a directory is there, and which complaint says that it is not.

/// Tells the complaint about a directory that went away from those about sensors.
///
/// Without a directory nobody can register, and what is attached is read to its end: the complaint
/// is to be known, but nothing is missing because of it. It may come a round later than the loss,
/// which shows when the source last spoke to the directory, after it had told its complaints.
#[derive(Debug)]
pub(crate) struct Presence {
    connected: bool,
    untold: bool,
}

impl Presence {
    /// A directory answers.
    pub(crate) const fn new() -> Self {
        Self {
            connected: true,
            untold: false,
        }
    }

    /// Once in each round: whether the source is connected.
    pub(crate) const fn look(&mut self, connected: bool) {
        if self.connected && !connected {
            self.untold = true;
        }
        self.connected = connected;
    }

    /// Whether the next complaint is about the directory.
    pub(crate) const fn is_loss(&mut self) -> bool {
        std::mem::replace(&mut self.untold, false)
    }
}

#[cfg(test)]
mod tests {
    use super::Presence;

    #[test]
    fn each_loss_has_one_complaint_whenever_it_comes() {
        let mut presence = Presence::new();
        presence.look(true);
        assert!(!presence.is_loss(), "of a sensor");
        presence.look(false);
        presence.look(false);
        assert!(presence.is_loss());
        assert!(!presence.is_loss());
        presence.look(true);
        presence.look(false);
        assert!(presence.is_loss());
    }
}
