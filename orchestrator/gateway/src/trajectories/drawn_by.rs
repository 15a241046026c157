//! A table of the servers that drew the turns of a trajectory. It takes eight bytes per turn.

use std::sync::Arc;

use rolldock_trajectory::TurnId;

/// The servers of a trajectory's turns.
#[derive(Debug, Default)]
pub(crate) struct DrawnBy {
    /// The names of the servers. There are few of them, most often one.
    servers: Vec<Arc<str>>,
    /// The turns, in the order of their numbers.
    turns: Vec<Drawn>,
}

#[derive(Debug, Clone, Copy)]
struct Drawn {
    turn: TurnId,
    /// The place of the server in `servers`.
    server: u16,
    is_fallback: bool,
}

impl DrawnBy {
    /// Adds a new turn. `is_fallback` says whether the server encoded the prompt itself.
    pub(super) fn add(&mut self, turn: TurnId, server: &Arc<str>, is_fallback: bool) {
        let known = self.servers.iter().position(|known| known == server);
        let place = known.unwrap_or_else(|| {
            self.servers.push(Arc::clone(server));
            self.servers.len() - 1
        });
        let drawn = Drawn { turn, server: u16::try_from(place).unwrap_or(u16::MAX), is_fallback };
        // Turns in parallel may be recorded in another order than their numbers.
        let at = self.turns.partition_point(|earlier| earlier.turn < turn);
        self.turns.insert(at, drawn);
    }

    /// The number of turns.
    pub(crate) fn turns(&self) -> u32 {
        self.turns.len() as u32
    }

    /// The name of the server of a turn, and whether it encoded the prompt itself.
    pub(crate) fn server(&self, turn: TurnId) -> Option<(&str, bool)> {
        let at = self.turns.binary_search_by_key(&turn, |drawn| drawn.turn).ok()?;
        Some((self.name(self.turns[at]), self.turns[at].is_fallback))
    }

    /// The name of the server of the last turn; empty without a turn.
    pub(crate) fn last(&self) -> &str {
        self.turns.last().map_or("", |drawn| self.name(*drawn))
    }

    /// The turns whose prompts were encoded by a server.
    pub(crate) fn reencoded(&self) -> Vec<TurnId> {
        self.turns.iter().filter(|drawn| drawn.is_fallback).map(|drawn| drawn.turn).collect()
    }

    fn name(&self, drawn: Drawn) -> &str {
        self.servers.get(usize::from(drawn.server)).map_or("", |name| name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn turns_have_their_servers_whatever_the_order_of_their_records() {
        let (near, far): (Arc<str>, Arc<str>) = ("near".into(), "far".into());
        let mut drawn = DrawnBy::default();
        assert_eq!((drawn.last(), drawn.turns()), ("", 0));
        for (turn, server, is_fallback) in [(0, &near, false), (3, &near, false), (1, &far, true)] {
            drawn.add(TurnId(turn), server, is_fallback);
        }
        assert_eq!(drawn.turns(), 3);
        assert_eq!(drawn.last(), "near");
        assert_eq!(drawn.server(TurnId(1)), Some(("far", true)));
        assert_eq!(drawn.server(TurnId(2)), None);
        assert_eq!(drawn.reencoded(), [TurnId(1)]);
    }
}
