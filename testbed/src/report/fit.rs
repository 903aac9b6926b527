//! What the parts of a step grow with, and curves fitted to them (OMGS-SGD, §V-B and Fig. 2).

use gleaner_algorithms::merging::{self, Line};
use gleaner_units::written;

use super::figure::{Figure, Panel, Point, Series, Shape, Unit, along, by_label, panels_of, suited};
use super::sample::Sample;
use gleaner_statistics::Spread;

/// So many sizes make a curve.
const FEWEST: usize = 4;

const SELECTION: &str = "Adding the gradient to the residual and choosing entries, on the slowest worker. Fitted by least squares of \
     the relative errors: a straight line, and γ n log2 n (OMGS-SGD, equation 10, its density within γ).";

const EXCHANGE: &str = "Waiting for messages, on the slowest worker, against what the worker that receives most receives. Fitted by \
     least squares of the relative errors: α + β times the bytes (OMGS-SGD, equation 11).";

/// Figures of measurements with several numbers of entries; without them they have no panel.
pub fn figures(samples: &[&Sample]) -> Vec<Figure> {
    let selections = panels(samples, |of_label| {
        let points = along("params", of_label, |s| s.parts.map(|[select, ..]| Spread::exact(select)));
        let places = places(&points);
        let fits = [line(&places), growth(&places)];
        (points, fits.into_iter().flatten().collect())
    });
    let exchanges = panels(samples, |of_label| {
        let exchanges =
            along("params", of_label, |s| s.parts.map(|[_, exchange, _]| Spread::exact(exchange)));
        let bytes = along("params", of_label, |s| s.bytes.map(Spread::exact));
        let at = |point: Point| {
            let received = bytes.iter().find(|b| b.x == point.x)?.spread.value;
            (received > 0.0).then_some(Point { x: Some(received), ..point })
        };
        let points: Vec<Point> = exchanges.into_iter().filter_map(at).collect();
        let fit = line(&places(&points));
        (points, fit.into_iter().collect())
    });
    let figure = |id, title, name: &str, caption: &str, panels| {
        Figure::new(id, title, Shape::Lines, (name, Unit::Seconds), caption, panels)
    };
    let [select, exchange] = ["time of a selection", "time of an exchange"];
    let title = "Time of a selection against the number of entries";
    let selection = figure("selection-against-entries", title, select, SELECTION, selections);
    let title = "Time of an exchange against the bytes received";
    let exchange = figure("exchange-against-bytes", title, exchange, EXCHANGE, exchanges);
    vec![selection.along("entries", Unit::None), exchange.along("bytes received", Unit::None)]
}

/// A panel for each setting with enough sizes: of each label what was measured, and what was fitted to it.
fn panels(samples: &[&Sample], of_label: impl Fn(&[&Sample]) -> (Vec<Point>, Vec<Fit>)) -> Vec<Panel> {
    let series = |label: String, points: Vec<Point>| Series { label, style: 0, points };
    panels_of(samples, Some("params"), |members| {
        let mut all = Vec::new();
        for (label, samples) in by_label(members) {
            let (points, fits) = of_label(&samples);
            if points.len() < FEWEST {
                continue;
            }
            for Fit { label, at } in fits {
                let fitted = |p: &Point| Point { spread: Spread::exact(at(p.x.unwrap_or(0.0))), ..p.clone() };
                all.push(series(label, points.iter().map(fitted).collect()));
            }
            all.push(series(label, points));
        }
        all
    })
}

/// A curve through places.
struct Fit {
    /// Its formula, with the numbers found.
    label: String,
    at: Box<dyn Fn(f64) -> f64>,
}

fn places(points: &[Point]) -> Vec<(f64, f64)> {
    points.iter().filter_map(|p| Some((p.x?, p.spread.value))).filter(|(_, y)| *y > 0.0).collect()
}

/// a + b x, with the least sum of squared relative errors; none through fewer places than [`FEWEST`].
fn line(places: &[(f64, f64)]) -> Option<Fit> {
    let line = Line::fit(places).filter(|_| places.len() >= FEWEST)?;
    let (factor, unit) = suited(Unit::Seconds, line.fixed);
    let label =
        format!("{} {unit} + {} ns · x", written(line.fixed * factor, 3), written(line.per_entry * 1e9, 3));
    Some(Fit { label, at: Box::new(move |x| line.fixed + line.per_entry * x) })
}

/// γ n log2 n, likewise.
fn growth(places: &[(f64, f64)]) -> Option<Fit> {
    let gamma = merging::fit_growth(places).filter(|_| places.len() >= FEWEST)?;
    let label = format!("{} ns · n log2 n", written(gamma * 1e9, 3));
    Some(Fit { label, at: Box::new(move |n| gamma * merging::growth(n)) })
}

#[cfg(test)]
mod tests {
    use super::*;

    const SIZES: [f64; 5] = [1e3, 2e4, 3e5, 1e6, 4e6];

    #[test]
    fn what_lies_on_a_curve_gives_that_curve() {
        for (a, b) in [(1e-3, 2e-9), (5e-6, 1e-8), (0.0, 3e-9)] {
            let places = SIZES.map(|x| (x, a + b * x));
            let fit = line(&places).unwrap();
            assert!(places.iter().all(|(x, y)| ((fit.at)(*x) / y - 1.0).abs() < 1e-9), "{}", fit.label);
        }
        assert_eq!(line(&SIZES.map(|x| (x, 2e-3 + 5e-9 * x))).unwrap().label, "2.00 ms + 5.00 ns · x");
        let places = SIZES.map(|n| (n, 7e-11 * n * n.log2()));
        let fit = growth(&places).unwrap();
        assert!(places.iter().all(|(n, y)| ((fit.at)(*n) / y - 1.0).abs() < 1e-9));
        assert_eq!(fit.label, "0.0700 ns · n log2 n");
    }

    #[test]
    fn few_places_are_no_curve() {
        assert!(line(&[(1.0, 1.0), (2.0, 2.0), (3.0, 3.0)]).is_none());
        assert!(line(&[(1.0, 1.0); 5]).is_none() && growth(&[]).is_none());
    }
}
