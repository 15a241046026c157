//! Random operations on the queue.

use proptest::prelude::*;
use rolldock_queue::Sampler;

use crate::rows::Replaced;
use crate::{CLIENTS, OPERATIONS_MIN};

#[derive(Debug, Clone)]
pub(crate) enum Op {
    /// Begins a group of `size` rows, and puts its first `now` rows.
    Put {
        size: usize,
        now: usize,
        priority: i64,
        policy_version: u64,
        keyed: bool,
        with_token: bool,
    },
    /// Repeats the last put that had a token. The rows of this put may have been freed.
    Repeat,
    /// Sets tags of some rows.
    Tags {
        which: usize,
        rows: usize,
    },
    /// Resets a task.
    Reset {
        task: usize,
    },
    /// Puts one more row of an unfinished group.
    Complete {
        which: usize,
    },
    /// Writes the column `extra` of some rows.
    Extra {
        which: usize,
        rows: usize,
    },
    /// Replaces values of some rows.
    Rewrite {
        which: usize,
        rows: usize,
        replaced: Replaced,
    },
    Take {
        task: usize,
        groups: bool,
        count: usize,
        sampler: Sampler,
        min_policy_version: u64,
    },
    Ack {
        which: usize,
    },
    Nack {
        which: usize,
    },
    Forget {
        which: usize,
    },
    Expire,
    Clear {
        which: usize,
        rows: usize,
    },
    /// Drops all leases of a client.
    Leave {
        client: usize,
    },
    /// Begins a snapshot and reads its first chunks. If a snapshot has begun already, reads the rest of it
    /// instead, and restores it into another queue.
    Snapshot {
        pieces: usize,
    },
    Reopen,
    /// The process dies. Only the files on disk at this moment are left.
    Crash,
}

pub(crate) fn operations() -> impl Strategy<Value = Vec<Op>> {
    let op = prop_oneof![
        6 => (1..6_usize, 0..6_usize, 0..3_i64, 0..4_u64, any::<bool>(), any::<bool>()).prop_map(
            |(size, less, priority, policy_version, keyed, with_token)| {
                let now = size.saturating_sub(less).max(1);
                Op::Put { size, now, priority, policy_version, keyed, with_token }
            }
        ),
        1 => Just(Op::Repeat),
        1 => (any::<usize>(), 1..4_usize).prop_map(|(which, rows)| Op::Tags { which, rows }),
        1 => (0..2_usize).prop_map(|task| Op::Reset { task }),
        3 => any::<usize>().prop_map(|which| Op::Complete { which }),
        5 => (any::<usize>(), 1..8_usize).prop_map(|(which, rows)| Op::Extra { which, rows }),
        4 => (any::<usize>(), 1..8_usize, replaced())
            .prop_map(|(which, rows, replaced)| Op::Rewrite { which, rows, replaced }),
        6 => (0..2_usize, any::<bool>(), 1..6_usize, samplers(), prop_oneof![3 => Just(0), 1 => 1..4_u64]).prop_map(
            |(task, groups, count, sampler, min_policy_version)| {
                Op::Take { task, groups, count, sampler, min_policy_version }
            }
        ),
        6 => any::<usize>().prop_map(|which| Op::Ack { which }),
        2 => any::<usize>().prop_map(|which| Op::Nack { which }),
        1 => any::<usize>().prop_map(|which| Op::Forget { which }),
        1 => Just(Op::Expire),
        1 => (any::<usize>(), 1..4_usize).prop_map(|(which, rows)| Op::Clear { which, rows }),
        1 => (0..CLIENTS).prop_map(|client| Op::Leave { client }),
        2 => (0..4_usize).prop_map(|pieces| Op::Snapshot { pieces }),
        1 => Just(Op::Reopen),
        1 => Just(Op::Crash),
    ];
    prop::collection::vec(op, OPERATIONS_MIN..OPERATIONS_MIN + 41)
}

fn replaced() -> impl Strategy<Value = Replaced> {
    prop_oneof![Just(Replaced::Tokens), Just(Replaced::Extra), Just(Replaced::Put), Just(Replaced::All)]
}

/// All samplers except the random one, which the unit tests of the index cover.
pub(crate) fn samplers() -> impl Strategy<Value = Sampler> {
    prop_oneof![
        2 => Just(Sampler::Declared),
        1 => Just(Sampler::Fifo),
        1 => Just(Sampler::Priority),
        1 => Just(Sampler::Freshest),
    ]
}
