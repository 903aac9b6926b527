//! A simulated step as a picture: ranks as rows, time to the right, what each is busy with.

use gleaner_charts::{Axis, DrawError, Fill, Row, Rows};
use gleaner_testbed::simulation::{Lived, Network, Part, Replayed};

pub const MOST_WORKERS: u32 = 64;

const WIDTH: i32 = 1000;
/// All rows together are about so high.
const HIGH: i32 = 640;

const KINDS: [(Option<Part>, Fill, &str); 3] = [
    (Some(Part::Select), Fill::SELECT, "selects and encodes"),
    (Some(Part::Merge), Fill::MERGE, "merges and commits"),
    (None, Fill::REST, "waits"),
];

pub fn svg(method: &str, replayed: &Replayed, network: &Network) -> Result<String, DrawError> {
    let high = (HIGH / replayed.workers.len().max(1) as i32).clamp(9, 34);
    let fill = |busy| KINDS.iter().find(|(kind, ..)| *kind == busy).map_or(Fill::REST, |(_, fill, _)| *fill);
    let row = |(rank, worker): (usize, &Lived)| {
        let name = match network.hosts[rank].slow {
            // Those of thin rows would touch.
            _ if high < 16 && rank % 4 > 0 => String::new(),
            1.0 => format!("rank {rank}"),
            slow => format!("rank {rank} ({slow}× slower)"),
        };
        let bars = worker.spans.iter().map(|span| (1e3 * span.start, 1e3 * span.end, fill(span.busy)));
        Row { name, bars: bars.collect(), ..Row::default() }
    };
    // Some begin after others.
    let spans = replayed.workers.iter().flat_map(|worker| &worker.spans);
    let end = spans.map(|span| 1e3 * span.end).fold(0.0, f64::max);
    let rows = replayed.workers.iter().enumerate().map(row).collect();
    let rows = Rows { axis: Axis::level("time, ms", 0.0, end), rows, high };
    let heading = format!("{method}: a step of {:.2} ms, simulated", replayed.seconds() * 1e3);
    rows.svg(WIDTH, heading, &KINDS.map(|(_, fill, words)| (fill, words)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use gleaner_testbed::simulation::{Link, Span};

    /// Two workers of which one begins when the other has long ended: the axis reaches to the end of the last bar.
    #[test]
    fn the_axis_has_the_scale_of_the_bars() {
        let worker = |start: f64, end: f64| {
            let spans = vec![Span { start, end, busy: Some(Part::Select) }];
            Lived { seconds: end - start, spans, ..Lived::default() }
        };
        let replayed = Replayed { workers: vec![worker(0.0, 1e-3), worker(9e-3, 10e-3)] };
        let link = Link { rate: 1e8, burst: 0.0, latency: 0.0, loss: 0.0 };
        let picture = svg("ring", &replayed, &Network::star(2, link, 2.0, true)).unwrap();
        let number = |line: &str, name: &str| -> f64 {
            let value = line.split(&format!(" {name}=\"")).nth(1).unwrap();
            value.split('"').next().unwrap().parse().unwrap()
        };
        // The words stand on the line behind their element.
        let lines: Vec<&str> = picture.lines().collect();
        let at = |words: &str| lines.windows(2).find(|two| two[1] == words).map(|two| number(two[0], "x"));
        let (begin, end) = (at("0").unwrap(), at("10").expect("a number at the right end of the axis"));
        let bars: Vec<&&str> =
            lines.iter().filter(|line| line.starts_with("<rect") && line.contains("#16385C")).collect();
        let [_, first, second] = bars[..] else { panic!("one in the legend, and two: {picture}") };
        let is_at = |found: f64, share: f64| (found - begin - share * (end - begin)).abs() <= 1.0;
        assert!(is_at(number(first, "x"), 0.0) && is_at(number(second, "x"), 0.9), "{picture}");
        assert!(is_at(number(second, "x") + number(second, "width"), 1.0), "{picture}");
    }
}
