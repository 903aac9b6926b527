//! Figures of regressions on sparse data, epoch by epoch.

use super::exchange;
use super::figure::{Figure, Shape, Unit, panels};
use super::sample::Sample;

/// All figures for which there may be numbers; those without have no panel.
pub fn figures(samples: &[&Sample]) -> Vec<Figure> {
    let mut time = exchange::step_time("epoch-time", "Time of an epoch", samples);
    time.value.name = "time of an epoch".into();
    time.caption = "A pass over the data, on the slowest worker, without evaluations. Where a setting was measured several times, the mark \
                    is the median of the turns and its bar reaches from the least to the largest; where it was measured once, the bar reaches from \
                    quartile to quartile of its epochs."
        .into();
    let mut bytes = exchange::bytes("epoch-bytes", samples);
    bytes.title = "Bytes received by a worker in an epoch";
    bytes.value.name = "bytes received in an epoch".into();
    bytes.caption =
        "The worker that receives most, by the method's own count, headers of its messages included.".into();
    // SparCML's Table 2, as the split is.
    let speed_up = exchange::times_the_ring("epoch-speed-up", "Speed-up of an epoch", "an epoch", samples);
    vec![time, split(samples), speed_up, bytes]
}

/// SparCML's Table 2: the communication part beside the whole.
fn split(samples: &[&Sample]) -> Figure {
    let of_epoch = |s: &Sample| s.parts.map(|[computing, communication, _]| [computing, communication]);
    Figure::new(
        "epoch-split",
        "What an epoch is spent on",
        Shape::Stacks,
        ("time of an epoch", Unit::Seconds),
        "Communication is what a worker spends on handing its gradients over and waiting for their sums, the mean over the workers; \
         computing is the rest of the slowest worker's epoch. Means over the epochs and turns.",
        panels(samples, None, |of_label, _| {
            exchange::parts(["computing", "communication"], of_label, of_epoch)
        }),
    )
}
