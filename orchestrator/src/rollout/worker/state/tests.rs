use super::*;

#[test]
fn failures_are_logged_at_growing_distances() {
    let logged: Vec<usize> = (1..=1024).filter(|failures| is_logged(*failures)).collect();
    assert_eq!(logged, [1, 2, 3, 4, 5, 6, 7, 8, 16, 32, 64, 128, 256, 512, 1024]);
}
