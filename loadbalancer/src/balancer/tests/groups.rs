//! Waiting requests of groups: which server serves them, and how far they may overtake others.

use super::*;

/// Fills two servers, and lets `samples` samples of each of `groups` groups wait, group after group. The samples of a
/// group share `shared` tokens, and samples have 1,000 tokens on average. Then a place of one server and a place of the
/// other get free in turn, until all have been granted. Returns, for each group, the number of its samples on the first
/// server, and the order of the grants.
async fn served_in_turn(
    policy: Policy,
    groups: u64,
    samples: u64,
    shared: Option<u32>,
) -> (Vec<u64>, Vec<u64>) {
    // Hundreds of futures are polled here without a pause. Tokio's budget would make them all wait.
    tokio::task::unconstrained(serve_in_turn(policy, groups, samples, shared)).await
}

async fn serve_in_turn(
    policy: Policy,
    groups: u64,
    samples: u64,
    shared_tokens: Option<u32>,
) -> (Vec<u64>, Vec<u64>) {
    let balancer = fleet(&[64; 2], policy);
    balancer.acquire(request(1)).await.unwrap().finish(Outcome::Success { tokens: 1_000 });
    let mut held = Vec::new();
    while let Some(permit) = balancer.acquire(request(1)).now_or_never() {
        held.push(permit.unwrap());
    }
    let of_groups = (0..groups).flat_map(|group| (0..samples).map(move |_| group));
    let ask =
        |group| Box::pin(balancer.acquire(PermitRequest { group: Some(group), shared_tokens, ..request(1) }));
    let mut waiting: Vec<_> = of_groups.map(|group| (group, ask(group))).collect();
    assert!(waiting.iter_mut().all(|(_, wait)| wait.now_or_never().is_none()));
    let (mut on_first, mut order) = (vec![0; groups as usize], Vec::new());
    for turn in 0..groups * samples {
        let server = ServerId((turn % 2) as u32);
        let at = held.iter().position(|permit| permit.server() == server).unwrap();
        drop(held.swap_remove(at));
        let granted = waiting.iter_mut().enumerate();
        let granted = granted.filter_map(|(index, (_, wait))| Some((index, wait.now_or_never()?.unwrap())));
        let (index, permit) = granted.take(1).next().expect("a free place is never left empty");
        let (group, _) = waiting.remove(index);
        assert_eq!(permit.server(), server);
        on_first[group as usize] += u64::from(server == ServerId(0));
        order.push(group);
        held.push(permit);
    }
    (on_first, order)
}

#[tokio::test]
async fn a_server_that_gets_room_serves_its_own_groups_first() {
    for shared in [None, Some(143)] {
        let (together, _) = served_in_turn(Policy::GroupAffinity, 8, 8, shared).await;
        assert!(
            together.iter().all(|count| [0, 8].contains(count)),
            "one server for each group: {together:?}"
        );
    }
    for (policy, shared) in [(Policy::LeastLoad, None), (Policy::GroupAffinity, Some(20))] {
        let (spread, order) = served_in_turn(policy, 8, 8, shared).await;
        assert_eq!(spread, [4; 8], "the places of two servers get free in turn");
        assert!(order.is_sorted(), "in order of arrival: {order:?}");
    }
}

#[tokio::test]
async fn the_longer_the_shared_prompt_the_more_samples_go_to_one_server() {
    let balancer = fleet(&[1], Policy::GroupAffinity);
    let in_a_row = |shared| balancer.shared.state.lock().in_a_row(shared);
    assert_eq!((in_a_row(Some(500)), in_a_row(None)), (0, u32::MAX), "the length of a sample is not known");
    balancer.acquire(request(1)).await.unwrap().finish(Outcome::Success { tokens: 1_000 });
    assert_eq!([0, 20, 40, 73, 290, 1_000].map(|shared| in_a_row(Some(shared))), [0, 0, 2, 4, 16, 56]);
}

#[tokio::test]
async fn a_group_is_spread_before_the_first_request_waits_too_long() {
    // Each of the two groups would keep to one server.
    let (on_first, order) = served_in_turn(Policy::GroupAffinity, 2, 200, None).await;
    let last_of_first = order.iter().rposition(|group| *group == 0).unwrap();
    // Two servers may be 2 * 32 requests ahead, so the 200th request is served as one of the first 264.
    assert!((250..=264).contains(&last_of_first), "{last_of_first} {on_first:?}");
}

#[tokio::test]
async fn a_request_of_a_higher_priority_goes_to_any_server() {
    let balancer = fleet(&[1, 1], Policy::GroupAffinity);
    let of = |group, priority| PermitRequest { group: Some(group), priority, ..request(1) };
    let first = balancer.acquire(of(1, Priority::New)).await.unwrap();
    let _second = balancer.acquire(of(2, Priority::New)).await.unwrap();
    let mut own = Box::pin(balancer.acquire(of(1, Priority::New)));
    let mut started = Box::pin(balancer.acquire(of(2, Priority::Started)));
    assert!((&mut own).now_or_never().is_none() && (&mut started).now_or_never().is_none());
    let server = first.server();
    drop(first);
    assert!((&mut own).now_or_never().is_none());
    assert_eq!(started.now_or_never().unwrap().unwrap().server(), server);
}
