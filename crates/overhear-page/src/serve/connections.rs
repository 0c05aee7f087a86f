// SPDX-License-Identifier: MIT OR Apache-2.0
//! Bounds of connections: every local user can reach the port, and must not keep its owner out.
//!
//! A connection *waits* until its request with the token has come; then it is *authenticated*. Each
//! user at the other end has a share of the waiting connections. A connection beyond the share
//! replaces the oldest one of the same user, never that of another user. An authenticated
//! connection is never replaced.

/// Maximum number of waiting connections of a user; browsers open a handful.
const MOST_WAITING_OF_USER: usize = 8;
/// Maximum number of waiting connections of all users.
const MOST_WAITING: usize = 64;
/// Maximum number of authenticated connections.
const MOST_AUTHENTICATED: usize = 32;

/// The connections of a server.
#[derive(Debug)]
pub(super) struct Connections<C> {
    // In the order of arrival.
    all: Vec<Connection<C>>,
    next: ConnectionId,
}

/// Number of a connection.
pub(super) type ConnectionId = u64;

#[derive(Debug)]
struct Connection<C> {
    id: ConnectionId,
    // `None` if the kernel does not provide it: all such connections share.
    uid: Option<u32>,
    is_authenticated: bool,
    // Handle to close the connection with.
    handle: C,
}

impl<C> Default for Connections<C> {
    fn default() -> Self {
        Self {
            all: Vec::new(),
            next: 0,
        }
    }
}

impl<C> Connections<C> {
    /// Admits a connection; the second value is the handle of a connection to close for it.
    pub(super) fn admit(&mut self, uid: Option<u32>, handle: C) -> (ConnectionId, Option<C>) {
        let id = self.next;
        self.next += 1;
        self.all.push(Connection {
            id,
            uid,
            is_authenticated: false,
            handle,
        });
        let of_user = self.waiting_of(uid);
        let evicted = if of_user > MOST_WAITING_OF_USER {
            self.evict(uid)
        } else if self.all.iter().filter(|it| !it.is_authenticated).count() > MOST_WAITING {
            let users = self.all.iter().map(|it| it.uid);
            let greatest = users.max_by_key(|&uid| self.waiting_of(uid));
            self.evict(greatest.flatten())
        } else {
            None
        };
        (id, evicted)
    }

    /// Authenticates a connection that has sent the token; returns whether there is room for it.
    pub(super) fn authenticate(&mut self, id: ConnectionId) -> bool {
        let authenticated = self.all.iter().filter(|it| it.is_authenticated).count();
        let known = self.all.iter_mut().find(|it| it.id == id);
        match known {
            Some(connection) if authenticated < MOST_AUTHENTICATED => {
                connection.is_authenticated = true;
                true
            }
            _ => false,
        }
    }

    /// Removes a connection that has ended.
    pub(super) fn end(&mut self, id: ConnectionId) {
        self.all.retain(|it| it.id != id);
    }

    fn waiting_of(&self, uid: Option<u32>) -> usize {
        let waiting = |it: &&Connection<C>| !it.is_authenticated && it.uid == uid;
        self.all.iter().filter(waiting).count()
    }

    /// Removes the oldest waiting connection of this user.
    fn evict(&mut self, uid: Option<u32>) -> Option<C> {
        let waits = |it: &Connection<C>| !it.is_authenticated && it.uid == uid;
        let oldest = self.all.iter().position(waits)?;
        Some(self.all.remove(oldest).handle)
    }
}

#[cfg(test)]
mod tests {
    use super::{Connections, MOST_AUTHENTICATED, MOST_WAITING, MOST_WAITING_OF_USER};

    #[test]
    fn user_evicts_only_own_connections() {
        let mut connections = Connections::default();
        let (mine, _) = connections.admit(Some(1), "mine");
        for number in 0..1000 {
            let (_, evicted) = connections.admit(Some(2), "theirs");
            let expected = (number >= MOST_WAITING_OF_USER).then_some("theirs");
            assert_eq!(evicted, expected);
        }
        assert!(connections.authenticate(mine));
        assert_eq!(connections.all.len(), MOST_WAITING_OF_USER + 1);
    }

    #[test]
    fn many_users_together_are_bounded() {
        let mut connections = Connections::default();
        for uid in 0..1000 {
            connections.admit(Some(uid), uid);
        }
        assert_eq!(connections.all.len(), MOST_WAITING);
    }

    #[test]
    fn token_protects_from_eviction_and_has_a_bound() {
        let mut connections = Connections::default();
        let mut ids = Vec::new();
        for _ in 0..=MOST_AUTHENTICATED {
            let (id, evicted) = connections.admit(None, ());
            assert_eq!(evicted, None);
            ids.push(id);
            assert_eq!(
                connections.authenticate(id),
                ids.len() <= MOST_AUTHENTICATED
            );
        }
        connections.end(ids[0]);
        assert!(connections.authenticate(ids[MOST_AUTHENTICATED]));
    }

    #[test]
    fn evicted_connection_cannot_authenticate() {
        let mut connections = Connections::default();
        let (first, _) = connections.admit(Some(1), 0);
        for number in 1..=MOST_WAITING_OF_USER {
            connections.admit(Some(1), number);
        }
        assert!(!connections.authenticate(first));
    }
}
