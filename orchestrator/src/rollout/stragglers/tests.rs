use proptest::prelude::*;

use super::*;

const TOKENS_MAX: f64 = 8_192.0;

fn place(server: u32, free: u32, in_use: u32, speed: f64) -> Place {
    Place { server: ServerId(server), free, in_use, speed: Some(speed) }
}

fn sample(dispatch: u64, server: u32, tokens: f64) -> Sample {
    Sample { key: (DispatchId(dispatch), 0), server: ServerId(server), tokens, prompt: 128.0 }
}

#[test]
fn a_long_sample_leaves_a_slow_server_for_the_fastest() {
    let fleet = vec![place(0, 8, 0, 180.0), place(1, 8, 0, 100.0), place(2, 6, 2, 40.0)];
    let moves = plan(fleet, &[sample(1, 2, 2_000.0), sample(2, 2, 3_000.0)], TOKENS_MAX);
    let [first, second] = [(DispatchId(1), 0), (DispatchId(2), 0)];
    assert_eq!(moves[0], (first, vec![ServerId(2)]), "it may go to both");
    assert_eq!(moves[1], (second, vec![ServerId(0), ServerId(2)]), "server 0 has as many samples now");
    assert_eq!(moves.len(), 2);
}

#[test]
fn nothing_moves_when_it_gains_nothing() {
    let slow_and = |other: Place| vec![other, place(1, 8, 4, 40.0)];
    let long = sample(1, 1, 3_000.0);
    for (why, fleet, samples) in [
        ("equal speeds", slow_and(place(0, 8, 0, 40.0)), [long]),
        ("no room", slow_and(place(0, 0, 2, 180.0)), [long]),
        ("as many samples there", slow_and(place(0, 8, 4, 180.0)), [long]),
        ("a sample that has just begun", slow_and(place(0, 8, 0, 180.0)), [sample(1, 1, 10.0)]),
        ("a sample at its limit", slow_and(place(0, 8, 0, 180.0)), [sample(1, 1, TOKENS_MAX)]),
        ("an unknown speed", slow_and(Place { speed: None, ..place(0, 8, 0, 0.0) }), [long]),
    ] {
        assert_eq!(plan(fleet, &samples, TOKENS_MAX), [], "{why}");
    }
}

fn fleets() -> impl Strategy<Value = Vec<Place>> {
    let one = (0_u32..9, 0_u32..9, prop::option::of(1.0..300.0_f64));
    prop::collection::vec(one, 1..6).prop_map(|places| {
        let place = |(number, (free, in_use, speed)): (u32, (u32, u32, Option<f64>))| Place {
            server: ServerId(number),
            free,
            in_use,
            speed,
        };
        (0..).zip(places).map(place).collect()
    })
}

proptest! {
    #[test]
    fn a_plan_only_moves_to_faster_servers_with_room(
        fleet in fleets(),
        drawn in prop::collection::vec((0_u32..6, 0.0..TOKENS_MAX), 0..40),
    ) {
        let samples: Vec<Sample> =
            (0..).zip(drawn).map(|(number, (server, tokens))| sample(number, server, tokens)).collect();
        let moves = plan(fleet.clone(), &samples, TOKENS_MAX);
        let keys: Vec<Key> = moves.iter().map(|(key, _)| *key).collect();
        prop_assert!(keys.is_sorted() && keys.windows(2).all(|pair| pair[0] != pair[1]));
        let free: u32 = fleet.iter().map(|place| place.free).sum();
        prop_assert!(moves.len() <= free as usize);
        for (key, avoid) in &moves {
            let moved = samples.iter().find(|sample| sample.key == *key).unwrap();
            let from = fleet.iter().find(|place| place.server == moved.server).unwrap();
            prop_assert!(avoid.contains(&moved.server));
            let targets: Vec<&Place> = fleet.iter().filter(|place| !avoid.contains(&place.server)).collect();
            prop_assert!(!targets.is_empty());
            for target in targets {
                prop_assert!(target.free > 0 && target.speed > from.speed);
            }
        }
    }
}

#[tokio::test(start_paused = true)]
async fn an_order_reaches_the_request_and_an_ended_request_is_forgotten() {
    let movable = Arc::new(Movable::default());
    let begun = |dispatch: u64| Begun {
        key: (DispatchId(dispatch), 0),
        server: ServerId(0),
        before: 1_000,
        prompt: 100,
        progress: None,
    };
    let mut first = movable.enter(begun(1));
    let second = movable.enter(begun(2));
    drop(second);
    assert_eq!(movable.running.lock().len(), 1);
    let order = movable.running.lock().get_mut(&(DispatchId(1), 0)).unwrap().order.take().unwrap();
    order.send(vec![ServerId(0)]).unwrap();
    assert_eq!(first.ordered().await, [ServerId(0)]);
}
