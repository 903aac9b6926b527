//! Groups of one layout that are not exchanged in the same steps: each is a gradient of its own.

use std::sync::Arc;

use gleaner_algorithms::collectives::MethodError;
use gleaner_algorithms::{Method, Sparsity, shares};

use super::sharing::for_group;
use super::{Gradients, stream};
use crate::failure::Error;
use crate::layout::Layout;
use crate::session::Inner;

impl Gradients {
    /// Gradients for each group of a layout. The method is named, and its k is of the whole layout. All ranks have agreed on both, and
    /// come together before any of them begins a step.
    pub(crate) fn of_each_group(
        session: &Arc<Inner>,
        channel: u64,
        layout: &Layout,
        method: &Method,
    ) -> Result<Vec<Self>, Error> {
        let layouts: Vec<Layout> = (0..layout.group_count()).map(|group| layout.only(group)).collect();
        let entries: Vec<usize> = layouts.iter().map(Layout::entries).collect();
        let methods: Vec<Method> = match method.sparsity() {
            Sparsity::Density(_) => entries.iter().map(|&n| for_group(method, n)).collect(),
            sparsity => {
                let k = sparsity.k(layout.entries()).map_err(MethodError::from)?;
                shares::by_length(k, &entries)
                    .into_iter()
                    .map(|k| method.clone().selecting(Sparsity::K(k)))
                    .collect()
            }
        };
        let streams = stream(channel)..;
        let units = streams.zip(layouts).zip(methods);
        units
            .map(|((stream, layout), method)| Self::make(session.clone(), stream, &layout, method, None))
            .collect()
    }
}
