//! Pairs of times of which none is better in both.

/// Pairs whose first times increase and whose second ones decrease, with something about each.
#[derive(Clone, Debug)]
pub(super) struct Frontier<T> {
    points: Vec<(f64, f64, T)>,
}

impl<T: Copy> Frontier<T> {
    /// No pairs.
    pub fn new() -> Self {
        Self { points: Vec::new() }
    }

    /// In order.
    pub fn points(&self) -> &[(f64, f64, T)] {
        &self.points
    }

    /// Takes a pair in, unless one that is there is no later in both, or it is found useless, which takes longer to say; what it
    /// is no later than in both goes. Of equal pairs the first stays. Pairs come with first times that do not decrease, from where
    /// `place` is 0; in between it is the frontier's.
    pub fn insert(&mut self, place: &mut usize, point: (f64, f64, T), useless: impl FnOnce() -> bool) {
        while self.points.get(*place).is_some_and(|other| other.0 <= point.0) {
            *place += 1;
        }
        let better = *place == 0 || self.points[*place - 1].1 > point.1;
        if !better || useless() {
            return;
        }
        let first = match place.checked_sub(1) {
            Some(before) if self.points[before].0 == point.0 => before,
            _ => *place,
        };
        let worse = self.points[first..].iter().take_while(|other| other.1 >= point.1).count();
        self.points.splice(first..first + worse, [point]);
        *place = first + 1;
    }

    /// So many of the points, evenly spread, with the first and the last; whether that left any out.
    pub fn thin(&mut self, width: usize) -> bool {
        let (count, points) = (self.points.len(), &self.points);
        if count > width {
            self.points = (0..width).map(|i| points[i * (count - 1) / (width - 1)]).collect();
        }
        count > width
    }

    /// At most this many pairs that bound all of them from below: of each run of neighbours the first time of the first, and the second of
    /// the last; whether any run had two.
    pub fn lower(&mut self, width: usize) -> bool {
        let count = self.points.len();
        let corner = |run: &[(f64, f64, T)]| Some((run.first()?.0, run.last()?.1, run.first()?.2));
        self.points = self.points.chunks(count.div_ceil(width).max(1)).filter_map(corner).collect();
        count > width
    }

    /// The least that the larger of two sums can be, of a point's times with these two. Infinite without points.
    pub fn least(&self, first: f64, second: f64) -> f64 {
        let place = self.points.partition_point(|point| first + point.0 < second + point.1);
        let before = place.checked_sub(1).map_or(f64::INFINITY, |before| second + self.points[before].1);
        self.points.get(place).map_or(f64::INFINITY, |point| first + point.0).min(before)
    }
}
