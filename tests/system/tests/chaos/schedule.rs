//! The faults of each round. The schedule is a pure function of its seed.
//!
//! Kinds of faults are drawn from a shuffled deck, so a schedule as long as the deck has every kind. Some
//! rounds have two faults at the same time, which always affect different parts of the system.

use rand::rngs::StdRng;
use rand::seq::{IndexedRandom, SliceRandom};
use rand::{RngExt, SeedableRng};

/// A part of the system: a process, or one of the two clients that are tasks of the test.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Part {
    Run,
    Queue,
    UnitA,
    UnitB,
    EngineA,
    EngineB,
    Reference,
    Trainer,
}

impl Part {
    pub(crate) const PROCESSES: [Self; 6] =
        [Self::Run, Self::Queue, Self::UnitA, Self::UnitB, Self::EngineA, Self::EngineB];
    const CLIENTS: [Self; 2] = [Self::Reference, Self::Trainer];
    const UNITS: [Self; 2] = [Self::UnitA, Self::UnitB];
    /// The processes that write files.
    pub(crate) const WRITERS: [Self; 4] = [Self::Run, Self::Queue, Self::UnitA, Self::UnitB];
}

/// A set of connections that pass a relay.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Link {
    /// From the run to an engine.
    EngineA,
    EngineB,
    /// From the reference worker to the run's queue.
    RunQueue,
    /// From the trainer to the run's policy listener.
    Policy,
    /// From the trainer and the reference worker to the queue server.
    Queue,
    /// Between storage unit A and the queue server with its clients, in both directions.
    UnitA,
}

impl Link {
    pub(crate) const ALL: [Self; 6] =
        [Self::EngineA, Self::EngineB, Self::RunQueue, Self::Policy, Self::Queue, Self::UnitA];

    /// The part at the end of the connections.
    fn end(self) -> Part {
        match self {
            Self::EngineA => Part::EngineA,
            Self::EngineB => Part::EngineB,
            Self::RunQueue | Self::Policy => Part::Run,
            Self::Queue => Part::Queue,
            Self::UnitA => Part::UnitA,
        }
    }
}

/// A fault of the system.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fault {
    /// SIGKILL, or the end of a client at its next wait. The part starts again at the end of the round.
    Kill(Part),
    /// SIGSTOP, and SIGCONT at the end of the round.
    Stop(Part),
    /// The disk of the process is full until the end of the round.
    FillDisk(Part),
    /// The process can open no more files until the end of the round.
    TakeDescriptors(Part),
    /// All connections of the link are closed, at the beginning of the round and at its end.
    Cut(Link),
    /// All bytes of the link are delayed by this number of milliseconds.
    Delay(Link, u64),
    /// Nothing passes between a unit and the queue server with its clients. No connection is closed.
    Partition(Part),
    /// The run's wall clock is set forward or back by this number of seconds. The run is killed too, because
    /// it reads this clock when it starts.
    StepClock(i64),
    /// The run is terminated, and a queue server serves the run's queue until the end of the round.
    StandIn,
    /// The trainer keeps a batch until its lease has expired.
    Dawdle,
}

impl Fault {
    /// The part that the fault concerns.
    pub(crate) fn part(self) -> Part {
        match self {
            Self::Kill(part)
            | Self::Stop(part)
            | Self::FillDisk(part)
            | Self::TakeDescriptors(part)
            | Self::Partition(part) => part,
            Self::Cut(link) | Self::Delay(link, _) => link.end(),
            Self::StepClock(_) | Self::StandIn => Part::Run,
            Self::Dawdle => Part::Trainer,
        }
    }

    /// Whether a process may end by itself under this fault. The supervisor starts such a process again.
    fn may_end_it(self) -> bool {
        matches!(self, Self::FillDisk(_) | Self::TakeDescriptors(_))
    }

    /// The longest time that the fault lasts, in milliseconds.
    fn hold_ms_max(self) -> u64 {
        // A unit that does not answer for about seven seconds is declared dead.
        if matches!(self, Self::Partition(_)) { 9_000 } else { 2_000 }
    }
}

/// A kind of fault, before its part is drawn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Kill,
    KillClient,
    Stop,
    FillDisk,
    TakeDescriptors,
    Cut,
    Delay,
    Partition,
    StepClock,
    StandIn,
    Dawdle,
}

/// The deck. A schedule with at least as many rounds as the deck has cards contains every kind.
const DECK: [Kind; 12] = [
    Kind::Kill,
    Kind::Kill,
    Kind::KillClient,
    Kind::Stop,
    Kind::FillDisk,
    Kind::TakeDescriptors,
    Kind::Cut,
    Kind::Delay,
    Kind::Partition,
    Kind::StepClock,
    Kind::StandIn,
    Kind::Dawdle,
];

impl Kind {
    /// The kind with this name. Panics if there is none.
    fn named(name: &str) -> Self {
        let found = DECK.into_iter().find(|kind| format!("{kind:?}") == name);
        found.unwrap_or_else(|| panic!("kind={name}: expected one of {DECK:?}"))
    }
}

const HOLD_MS_MIN: u64 = 300;
const DELAY_MS: std::ops::RangeInclusive<u64> = 5..=100;
/// A day in seconds: the largest step of the clock.
const STEP_S_MAX: i64 = 86_400;
/// The share of the rounds that have a second fault.
const SECOND: f64 = 0.4;

/// The faults of one round, which begin together.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Round {
    pub(crate) faults: Vec<Fault>,
    /// How long the faults last, in milliseconds.
    pub(crate) hold_ms: u64,
}

impl Round {
    /// The processes that may end by themselves in this round.
    pub(crate) fn may_end(&self) -> Vec<Part> {
        self.faults.iter().filter(|fault| fault.may_end_it()).map(|fault| fault.part()).collect()
    }
}

/// The endless sequence of rounds of a seed.
pub(crate) struct Schedule {
    rng: StdRng,
    /// The cards of a whole deck.
    cards: Vec<Kind>,
    deck: Vec<Kind>,
}

impl Schedule {
    /// The schedule of a seed. `without` has the names of the kinds of faults that it leaves out, separated
    /// by commas.
    pub(crate) fn new(seed: u64, without: &str) -> Self {
        let left_out: Vec<Kind> =
            without.split(',').filter(|name| !name.is_empty()).map(Kind::named).collect();
        let cards = DECK.into_iter().filter(|kind| !left_out.contains(kind)).collect();
        Self { rng: StdRng::seed_from_u64(seed), cards, deck: Vec::new() }
    }

    fn any<T: Copy>(&mut self, from: &[T]) -> T {
        *from.choose(&mut self.rng).unwrap()
    }

    /// Draws a card, and a fault of its kind.
    fn draw(&mut self) -> (Kind, Fault) {
        if self.deck.is_empty() {
            self.deck.extend(&self.cards);
            self.deck.shuffle(&mut self.rng);
        }
        let kind = self.deck.pop().unwrap();
        let fault = match kind {
            Kind::Kill => Fault::Kill(self.any(&Part::PROCESSES)),
            Kind::KillClient => Fault::Kill(self.any(&Part::CLIENTS)),
            Kind::Stop => Fault::Stop(self.any(&Part::PROCESSES)),
            Kind::FillDisk => Fault::FillDisk(self.any(&Part::WRITERS)),
            Kind::TakeDescriptors => Fault::TakeDescriptors(self.any(&Part::WRITERS)),
            Kind::Cut => Fault::Cut(self.any(&Link::ALL)),
            Kind::Delay => Fault::Delay(self.any(&Link::ALL), self.rng.random_range(DELAY_MS)),
            Kind::Partition => Fault::Partition(self.any(&Part::UNITS)),
            Kind::StepClock => Fault::StepClock(self.rng.random_range(-STEP_S_MAX..=STEP_S_MAX)),
            Kind::StandIn => Fault::StandIn,
            Kind::Dawdle => Fault::Dawdle,
        };
        (kind, fault)
    }
}

impl Iterator for Schedule {
    type Item = Round;

    fn next(&mut self) -> Option<Round> {
        let mut faults = vec![self.draw().1];
        if self.rng.random_bool(SECOND) {
            match self.draw() {
                (kind, second) if second.part() == faults[0].part() => self.deck.push(kind),
                (_, second) => faults.push(second),
            }
        }
        let longest = faults.iter().map(|fault| fault.hold_ms_max()).max().unwrap_or(HOLD_MS_MIN);
        Some(Round { hold_ms: self.rng.random_range(HOLD_MS_MIN..=longest), faults })
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    fn rounds(seed: u64, count: usize) -> Vec<Round> {
        Schedule::new(seed, "").take(count).collect()
    }

    #[test]
    fn a_seed_gives_one_schedule() {
        assert_eq!(rounds(7, 200), rounds(7, 200));
        assert_ne!(rounds(7, 200), rounds(8, 200));
        assert_eq!(rounds(7, 200)[..10], rounds(7, 10), "more rounds change no earlier one");
    }

    #[test]
    fn a_short_schedule_has_every_kind() {
        for seed in 0..20 {
            let faults = rounds(seed, DECK.len()).into_iter().flat_map(|round| round.faults);
            let kinds: BTreeSet<String> =
                faults.map(|fault| format!("{fault:?}").split('(').next().unwrap().to_owned()).collect();
            // The two kinds of kills have one name.
            assert_eq!(kinds.len(), 10, "seed={seed}: {kinds:?}");
        }
    }

    #[test]
    fn a_kind_can_be_left_out() {
        let rounds = Schedule::new(5, "FillDisk,Kill").take(200);
        let faults: Vec<Fault> = rounds.flat_map(|round| round.faults).collect();
        assert!(!faults.iter().any(|fault| matches!(fault, Fault::FillDisk(_))));
        let is_killed = |part| faults.contains(&Fault::Kill(part));
        assert!(!Part::PROCESSES.into_iter().any(is_killed) && Part::CLIENTS.into_iter().all(is_killed));
    }

    #[test]
    fn two_faults_of_a_round_concern_different_parts() {
        let rounds = rounds(3, 500);
        let two = rounds.iter().filter(|round| round.faults.len() == 2);
        assert!(two.clone().count() > 100);
        assert!(two.clone().all(|round| round.faults[0].part() != round.faults[1].part()));
        assert!(rounds.iter().all(|round| (1..=2).contains(&round.faults.len())));
        assert!(rounds.iter().all(|round| (HOLD_MS_MIN..=9_000).contains(&round.hold_ms)));
    }

    #[test]
    fn every_part_and_every_link_has_its_turn() {
        let faults: Vec<Fault> = rounds(5, 500).into_iter().flat_map(|round| round.faults).collect();
        for part in Part::PROCESSES.into_iter().chain(Part::CLIENTS) {
            assert!(faults.contains(&Fault::Kill(part)), "{part:?} is never killed");
        }
        for part in Part::WRITERS {
            assert!(faults.contains(&Fault::FillDisk(part)), "{part:?} never has a full disk");
            assert!(faults.contains(&Fault::TakeDescriptors(part)), "{part:?} never lacks descriptors");
        }
        assert!(Part::PROCESSES.into_iter().all(|part| faults.contains(&Fault::Stop(part))));
        assert!(Part::UNITS.into_iter().all(|unit| faults.contains(&Fault::Partition(unit))));
        assert!(Link::ALL.into_iter().all(|link| faults.contains(&Fault::Cut(link))));
        assert!([Fault::StandIn, Fault::Dawdle].iter().all(|fault| faults.contains(fault)));
        let steps = faults.iter().filter_map(|fault| match fault {
            Fault::StepClock(seconds) => Some(*seconds),
            _ => None,
        });
        assert!(steps.clone().any(|step| step > 0) && steps.clone().any(|step| step < 0));
    }
}
