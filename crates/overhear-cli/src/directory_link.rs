// SPDX-License-Identifier: MIT OR Apache-2.0
//! State of the connection to a directory, and the complaint about its loss.

/// Separates the complaint about a lost directory from complaints about sensors.
///
/// Without a directory no sensor can register, and attached sensors are read to their end: the user
/// sees the complaint, but no element is missing because of it. The complaint may come a round
/// later than the loss, because the source notices the loss after it has passed its complaints on.
#[derive(Debug)]
pub(crate) struct DirectoryLink {
    connected: bool,
    loss_pending: bool,
}

impl DirectoryLink {
    /// The state at the begin: connected.
    pub(crate) const fn new() -> Self {
        Self {
            connected: true,
            loss_pending: false,
        }
    }

    /// Takes the state of the source, once in each round.
    pub(crate) const fn update(&mut self, connected: bool) {
        if self.connected && !connected {
            self.loss_pending = true;
        }
        self.connected = connected;
    }

    /// Whether the next complaint is about the directory.
    pub(crate) const fn is_loss(&mut self) -> bool {
        std::mem::replace(&mut self.loss_pending, false)
    }
}

#[cfg(test)]
mod tests {
    use super::DirectoryLink;

    #[test]
    fn each_loss_has_one_complaint() {
        let mut link = DirectoryLink::new();
        link.update(true);
        assert!(!link.is_loss(), "of a sensor");
        link.update(false);
        link.update(false);
        assert!(link.is_loss());
        assert!(!link.is_loss());
        link.update(true);
        link.update(false);
        assert!(link.is_loss());
    }
}
