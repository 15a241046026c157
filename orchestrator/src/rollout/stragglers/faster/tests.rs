use proptest::prelude::*;
use rolldock_dispatch::DispatchId;
use rolldock_loadbalancer::{BalancerConfig, LoadBalancer, ServerSpec};

use super::*;

const TOKENS_MAX: f64 = 8_192.0;

/// A server whose speed does not depend on the use of its cache.
fn place(server: u32, free: u32, in_use: u32, speed: f64) -> Place {
    let pace = Some(Pace { empty_s: speed.recip(), full_s: speed.recip(), error: 0.0 });
    Place { server: ServerId(server), free, is_full: false, in_use, pace, usage: 0.0, held: 0.0 }
}

/// A server with a cache of 100,000 tokens that takes 6 ms per token with an empty cache, and 12 ms with a
/// full one.
fn loaded(server: u32, in_use: u32, usage: f64) -> Place {
    let pace = Some(Pace { empty_s: 0.006, full_s: 0.012, error: 0.0 });
    Place { server: ServerId(server), free: 64, is_full: false, in_use, pace, usage, held: usage * 1e5 }
}

/// The server with this error of its pace.
fn uncertain(place: Place, error: f64) -> Place {
    Place { pace: place.pace.map(|pace| Pace { error, ..pace }), ..place }
}

fn sample(dispatch: u64, from: usize, tokens: f64) -> Sample {
    Sample { key: (DispatchId(dispatch), 0), from, tokens, prompt: 128.0, again: None }
}

#[test]
fn a_long_sample_leaves_a_slow_server_for_the_fastest() {
    let fleet = vec![place(0, 8, 0, 180.0), place(1, 8, 0, 100.0), place(2, 6, 2, 40.0)];
    let moves = plan(fleet, vec![sample(1, 2, 2_000.0), sample(2, 2, 3_000.0)], TOKENS_MAX);
    let [first, second] = [(DispatchId(1), 0), (DispatchId(2), 0)];
    assert_eq!(moves[0], (second, vec![ServerId(1), ServerId(2)]), "the longest sample is first");
    assert_eq!(moves[1], (first, vec![ServerId(0), ServerId(2)]), "server 0 has as many samples now");
    assert_eq!(moves.len(), 2);
}

#[test]
fn nothing_moves_when_it_gains_nothing() {
    let slow_and = |other: Place| vec![other, place(1, 8, 4, 40.0)];
    let long = sample(1, 1, 3_000.0);
    for (why, fleet, samples) in [
        ("equal speeds", slow_and(place(0, 8, 0, 40.0)), [long]),
        ("speeds that hardly differ", slow_and(place(0, 8, 0, 41.0)), [long]),
        (
            "speeds that differ by an error of measurement",
            slow_and(uncertain(place(0, 8, 0, 48.0), 0.1)),
            [long],
        ),
        ("no room", slow_and(place(0, 0, 2, 180.0)), [long]),
        ("as many samples there", slow_and(place(0, 8, 4, 180.0)), [long]),
        ("a sample that has just begun", slow_and(place(0, 8, 0, 180.0)), [sample(1, 1, 10.0)]),
        ("a sample at its limit", slow_and(place(0, 8, 0, 180.0)), [sample(1, 1, TOKENS_MAX)]),
        ("an unknown pace", slow_and(Place { pace: None, ..place(0, 8, 0, 180.0) }), [long]),
        ("a full cache", vec![Place { usage: 0.94, ..loaded(0, 2, 0.94) }, place(1, 8, 4, 40.0)], [long]),
        ("caches that are equally full", vec![loaded(0, 20, 0.6), loaded(1, 20, 0.6)], [long]),
    ] {
        assert_eq!(plan(fleet, samples.to_vec(), TOKENS_MAX), [], "{why}");
    }
}

#[test]
fn samples_leave_a_full_server_for_an_equal_one_until_the_gain_is_small() {
    let samples = (0..20).map(|number| sample(number, 0, 4_000.0)).collect();
    let moves = plan(vec![loaded(0, 20, 0.83), loaded(1, 0, 0.0)], samples, TOKENS_MAX);
    // With 3 of them on the other server: 6.7 ms there. Here 0.70 of the cache: 10.2 ms. They stop when less
    // than a twentieth is gained: at 0.37 there and 0.46 here.
    assert!((7..=9).contains(&moves.len()), "{} moves", moves.len());
    assert!(moves.iter().all(|(_, avoid)| *avoid == [ServerId(0)]));
}

#[test]
fn a_fast_server_takes_more_samples_than_it_leaves_on_a_slow_one() {
    // The server is slow, and has a few samples. The other is more than twice as fast with its many samples.
    let slow = Place { pace: Some(Pace { empty_s: 0.03, full_s: 0.06, error: 0.0 }), ..loaded(1, 2, 0.1) };
    let moves = plan(vec![loaded(0, 10, 0.4), slow], vec![sample(1, 1, 4_000.0)], TOKENS_MAX);
    assert_eq!(moves, [((DispatchId(1), 0), vec![ServerId(1)])]);
}

#[test]
fn a_sample_moves_only_if_the_gain_is_beyond_the_error_of_the_paces() {
    let moves = |speed: f64, error: f64| {
        let fleet = vec![uncertain(place(0, 8, 0, speed), error), uncertain(place(1, 8, 4, 40.0), error)];
        plan(fleet, vec![sample(1, 1, 3_000.0)], TOKENS_MAX).len()
    };
    for (speed, error, count) in
        [(70.0, 0.0, 1), (70.0, 0.3, 0), (160.0, 0.3, 1), (160.0, 1.0, 0), (400.0, 1.0, 1), (100.0, 1.0, 0)]
    {
        assert_eq!(moves(speed, error), count, "{speed} tokens/s and not 40, error {error}");
    }
}

/// On a full server with few samples it takes longer until one of them ends.
#[test]
fn a_sample_moves_to_a_full_server_if_the_wait_for_a_place_is_short() {
    let moves = |in_use| {
        let full = Place { is_full: true, in_use, ..loaded(0, 0, 0.5) };
        let slow =
            Place { pace: Some(Pace { empty_s: 0.01, full_s: 0.02, error: 0.0 }), ..loaded(1, 4, 0.5) };
        plan(vec![full, slow], vec![sample(1, 1, 3_000.0)], TOKENS_MAX).len()
    };
    // Here the sample needs 45 s more, and 27 s there.
    assert_eq!([1, 4, 40].map(moves), [0, 1, 1]);
}

#[test]
fn a_look_reads_the_samples_only_if_a_server_is_faster() {
    let slow = place(0, 8, 4, 40.0);
    for (why, other, expected) in [
        ("faster", place(1, 8, 0, 180.0), true),
        ("faster and full", place(1, 0, 8, 180.0), false),
        ("equal", place(1, 8, 0, 40.0), false),
        ("faster by too little", place(1, 8, 0, 42.0), false),
        ("unknown", Place { pace: None, ..place(1, 8, 0, 180.0) }, false),
    ] {
        assert_eq!(has_faster_place(&[slow, other]), expected, "{why}");
        assert!(
            !has_faster_place(&[Place { in_use: 0, ..slow }, other]),
            "{why}: no samples that could gain"
        );
    }
}

/// Samples that are short beside the time between two readings leave no pace behind.
#[test]
fn an_empty_server_without_a_pace_has_its_speed_by_answers() {
    let spec = |name: &str| ServerSpec::unreached(name, 8);
    let balancer =
        LoadBalancer::new(BalancerConfig::default(), vec![spec("slow"), spec("fast"), spec("new")]).unwrap();
    let mut servers = balancer.snapshot().servers;
    let pace = Pace { empty_s: 0.05, full_s: 0.1, error: 0.0 };
    (servers[0].in_use, servers[0].pace) = (4, Some(pace));
    servers[1].tokens_per_second = Some(100.0);
    let answered = Pace { empty_s: 0.01, full_s: 0.01, error: 0.0 };
    let paces =
        |servers: &[ServerSnapshot]| places(servers, 0).iter().map(|place| place.pace).collect::<Vec<_>>();
    assert_eq!(paces(&servers), [Some(pace), Some(answered), None]);
    servers[1].in_use = 1;
    assert_eq!(
        paces(&servers),
        [None, Some(answered), None],
        "the pace of a server with samples is not known"
    );
}

fn fleets() -> impl Strategy<Value = Vec<Place>> {
    let pace = (1e-3..0.1_f64, 1.0..3.0_f64, 0.0..1.0_f64);
    let pace = pace.prop_map(|(empty_s, times, error)| Pace { empty_s, full_s: empty_s * times, error });
    let one = (0_u32..9, 0_u32..9, prop::option::of(pace), 0.0..1.0_f64, 0.0..1e5_f64);
    prop::collection::vec(one, 1..6).prop_map(|places| {
        let place = |(number, (free, in_use, pace, usage, held))| Place {
            server: ServerId(number),
            free,
            is_full: false,
            in_use,
            pace,
            usage,
            held,
        };
        (0..).zip(places).map(place).collect()
    })
}

proptest! {
    #[test]
    fn a_plan_only_moves_to_servers_with_room_and_never_twice(
        fleet in fleets(),
        drawn in prop::collection::vec((any::<prop::sample::Index>(), 0.0..TOKENS_MAX), 0..40),
    ) {
        let samples: Vec<Sample> = (0..)
            .zip(drawn)
            .map(|(number, (from, tokens))| sample(number, from.index(fleet.len()), tokens))
            .collect();
        let moves = plan(fleet.clone(), samples.clone(), TOKENS_MAX);
        let mut keys: Vec<Key> = moves.iter().map(|(key, _)| *key).collect();
        keys.sort();
        prop_assert!(keys.windows(2).all(|pair| pair[0] != pair[1]));
        let free: u32 = fleet.iter().map(|place| place.free).sum();
        prop_assert!(moves.len() <= free as usize);
        for (key, avoid) in &moves {
            let moved = samples.iter().find(|sample| sample.key == *key).unwrap();
            let from = &fleet[moved.from];
            prop_assert!(avoid.contains(&from.server));
            let targets: Vec<&Place> = fleet.iter().filter(|place| !avoid.contains(&place.server)).collect();
            prop_assert!(!targets.is_empty());
            for target in targets {
                // A full server may get a sample after others have left it.
                prop_assert!(target.free > 0);
                // The server that the sample leaves was at its fullest before the first move.
                let (there, here) = (target.pace.unwrap().empty_s, from.pace.unwrap().at(from.usage.max(FULL)));
                prop_assert!(there < here);
            }
        }
    }
}

/// A copy of a sample with `g` tokens needs `2 g` on the other server, and the sample is expected to need `g` here.
#[test]
fn a_copy_must_save_the_time_of_the_tokens_that_it_generates_again() {
    let copies = |speed: f64| {
        let fleet = vec![place(0, 8, 0, speed), place(1, 8, 4, 40.0)];
        let copied = Sample { again: Some(3_000.0), ..sample(1, 1, 3_000.0) };
        plan(fleet, vec![copied], TOKENS_MAX).len()
    };
    // It must also save a twentieth of the time: the other server has to be 2 / 0.95 times as fast.
    assert_eq!([70.0, 82.0, 88.0].map(copies), [0, 0, 1]);
}

/// A copied sample stays, so its place is not free for a sample that a third server has.
#[test]
fn a_copied_sample_keeps_its_place() {
    let fleet = vec![place(0, 1, 0, 400.0), place(1, 0, 1, 100.0), place(2, 4, 4, 10.0)];
    let copied = |dispatch, from, tokens| Sample { again: Some(tokens), ..sample(dispatch, from, tokens) };
    let copies = plan(fleet, vec![copied(1, 1, 3_000.0), copied(2, 2, 2_000.0)], TOKENS_MAX);
    assert_eq!(copies.len(), 1, "the only free place: {copies:?}");
}
