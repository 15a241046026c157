use proptest::prelude::*;

use super::shuffled;

#[test]
fn the_order_of_a_seed_and_epoch_never_changes() {
    // Checkpoints depend on these orders. An independent implementation in Python gives the same orders.
    assert_eq!(shuffled(8, 42, 0), [5, 6, 0, 3, 4, 1, 2, 7]);
    assert_eq!(shuffled(8, 42, 1), [7, 2, 6, 1, 5, 3, 0, 4]);
}

#[test]
fn every_row_comes_first_equally_often() {
    let mut firsts = [0_u32; 5];
    for epoch in 0..5_000 {
        firsts[shuffled(5, 7, epoch)[0] as usize] += 1;
    }
    // Each count has an expected value of 1,000 and a standard deviation of 28.
    assert!(firsts.iter().all(|count| (860..1140).contains(count)), "{firsts:?}");
}

proptest! {
    #[test]
    fn an_order_has_every_row_once(rows in 0_u32..500, seed: u64, epoch: u32) {
        let mut order = shuffled(rows, seed, epoch);
        order.sort_unstable();
        prop_assert!(order.into_iter().eq(0..rows));
    }
}
