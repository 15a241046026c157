//! Tests of each policy with a few servers.

use proptest::prelude::*;
use proptest::sample::Index;
use rand::SeedableRng;

use super::*;

fn server(id: u32, in_use: u32) -> Candidate {
    let (capacity, speed) = (10, 1.0);
    Candidate {
        server: ServerId(id),
        free: capacity - in_use,
        free_tokens: u32::MAX,
        in_use,
        load: in_use as f32 / capacity as f32,
        work: in_use as f32 * 100.0,
        speed,
        is_live: true,
    }
}

fn fleet(servers: &[Candidate]) -> Candidates {
    servers.iter().copied().collect()
}

fn ask(weight: u32) -> Ask<'static> {
    Ask { weight, tokens: 0, group: None, home: None, in_a_row: 0, avoid: &[] }
}

fn policy(policy: Policy) -> Box<dyn RoutingPolicy> {
    of(policy, AffinityConfig::default())
}

fn rng() -> ChaCha8Rng {
    ChaCha8Rng::seed_from_u64(7)
}

#[test]
fn each_policy_compares_its_own_measure() {
    let mut servers = [server(0, 3), server(1, 2), server(2, 5)];
    servers[0].work = 50.0;
    servers[2].speed = 10.0;
    let picked = |named| policy(named).pick(&ask(1), &fleet(&servers), &mut rng());
    assert_eq!(picked(Policy::LeastLoad), Some(1));
    assert_eq!(picked(Policy::LeastWork), Some(0));
    assert_eq!(picked(Policy::Weighted), Some(2));
}

#[test]
fn a_server_that_does_not_fit_is_never_picked() {
    let mut servers = [server(0, 0), server(1, 8), server(2, 4)];
    servers[2].free_tokens = 10;
    let avoid = [ServerId(0)];
    for named in Policy::ALL {
        let mut policy = policy(named);
        for _ in 0..20 {
            let ask = Ask { tokens: 11, group: Some(1), avoid: &avoid, ..ask(2) };
            assert_eq!(policy.pick(&ask, &fleet(&servers), &mut rng()), Some(1), "{named:?}");
        }
        assert_eq!(
            policy.pick(&Ask { weight: 11, ..ask(1) }, &fleet(&servers), &mut rng()),
            None,
            "{named:?}"
        );
        assert_eq!(policy.pick(&ask(1), &Candidates::default(), &mut rng()), None, "{named:?}");
    }
}

#[test]
fn one_pass_of_round_robin_visits_every_server() {
    let servers = [server(0, 0), server(1, 9), server(2, 0)];
    let mut policy = policy(Policy::RoundRobin);
    let picks: Vec<_> = (0..6).map(|_| policy.pick(&ask(1), &fleet(&servers), &mut rng()).unwrap()).collect();
    assert_eq!(picks, [0, 1, 2, 0, 1, 2]);
}

#[test]
fn a_group_follows_its_first_sample_and_leaves_a_server_that_is_too_full() {
    let config = AffinityConfig { load_max: 0.8, ratio_max: 2.0, load_min: 0.3 };
    let mut policy = GroupAffinity::new(config);
    let mut rng = rng();
    let mut home = None;
    let mut pick = |loads: [u32; 3]| {
        let servers: Vec<Candidate> = (0..).zip(loads).map(|(id, in_use)| server(id, in_use)).collect();
        let of_group = Ask { group: Some(5), home, ..ask(1) };
        let index = policy.pick(&of_group, &fleet(&servers), &mut rng).unwrap();
        home = Some(servers[index].server);
        index
    };
    assert_eq!(pick([0, 1, 1]), 0);
    assert_eq!(pick([3, 0, 0]), 0, "far above the others, and still nearly idle");
    assert_eq!(pick([6, 5, 5]), 0);
    assert_eq!(pick([9, 8, 7]), 2, "above the absolute threshold");
    assert_eq!(pick([0, 1, 5]), 0, "five are more than twice what the others have");
    assert_eq!(pick([4, 4, 4]), 0, "and there it stays");
}

#[test]
fn dead_servers_do_not_count_as_idle_for_group_affinity() {
    let config = AffinityConfig { load_max: 0.9, ratio_max: 1.5, load_min: 0.25 };
    let mut policy = GroupAffinity::new(config);
    let mut rng = rng();
    let mut home = None;
    let dead = |id| Candidate { free: 0, is_live: false, ..server(id, 0) };
    let mut pick = |loads: [u32; 2]| {
        let servers = [server(0, loads[0]), server(1, loads[1]), dead(2), dead(3), dead(4)];
        let of_group = Ask { group: Some(5), home, ..ask(1) };
        let index = policy.pick(&of_group, &fleet(&servers), &mut rng).unwrap();
        home = Some(servers[index].server);
        index
    };
    assert_eq!(pick([4, 5]), 0);
    assert_eq!(pick([6, 5]), 0, "it has about what the only other one has");
    assert_eq!(pick([8, 5]), 1, "more than one and a half times as much");
}

/// The mean load of the live servers other than the one at `index`, without the sums that are kept.
fn mean_of_others(servers: &[Candidate], index: usize) -> f32 {
    let others = servers.iter().enumerate().filter(|(other, server)| *other != index && server.is_live);
    let loads: Vec<f32> = others.map(|(_, server)| server.load).collect();
    loads.iter().sum::<f32>() / loads.len().max(1) as f32
}

proptest! {
    #[test]
    fn the_mean_load_follows_every_change(
        changes in prop::collection::vec((0..4_u8, any::<Index>(), 0..=10_u32, any::<bool>()), 1..60),
    ) {
        let mut candidates = Candidates::default();
        for (id, (change, index, in_use, is_live)) in (0..).zip(changes) {
            let candidate = Candidate { is_live, ..server(id, in_use) };
            let index = if candidates.is_empty() { None } else { Some(index.index(candidates.len())) };
            match (change, index) {
                (0, Some(index)) => candidates.remove(index),
                (1, Some(index)) => candidates.hide_room(index),
                (2, Some(index)) => {
                    let server = candidates[index].server;
                    candidates.update(index, Candidate { server, ..candidate });
                }
                _ => candidates.push(candidate),
            }
            for (index, server) in candidates.iter().enumerate() {
                let expected = mean_of_others(&candidates, index);
                prop_assert!((candidates.mean_load_of_others(server) - expected).abs() < 1e-5);
            }
        }
    }
}
