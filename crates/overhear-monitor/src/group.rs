// SPDX-License-Identifier: MIT OR Apache-2.0
//! Updates that share a context: one model of the observed system, moved on by several sensors.

use std::collections::HashMap;
use std::fmt;
use std::hash::BuildHasherDefault;

use overhear_event::{Analysis, ElementView, Gap, StreamDescriptor, StreamId, Timestamp};

use crate::merge::StreamIdHasher;
use crate::updates::{Subscription, SubscriptionMatch};

/// A function that evaluates the elements of some sensors with a context that it shares with
/// others: the update function of [GRTMon, section 4.3]. A closure that takes the context and
/// an element is one.
pub trait UpdateFunction<C> {
    /// Prepares for evaluations that must neither allocate nor fault; see [`Analysis::warm_up`].
    fn warm_up(&mut self, context: &mut C) {
        let _ = context;
    }

    /// Evaluates one element.
    fn element(&mut self, context: &mut C, element: &ElementView<'_>);

    /// Reports missed elements.
    fn gap(&mut self, context: &mut C, stream: &StreamDescriptor, gap: &Gap) {
        let _ = (context, stream, gap);
    }

    /// Promises that no item older than `now` follows.
    fn advance(&mut self, context: &mut C, now: Timestamp) {
        let _ = (context, now);
    }
}

impl<C, F: FnMut(&mut C, &ElementView<'_>)> UpdateFunction<C> for F {
    fn element(&mut self, context: &mut C, element: &ElementView<'_>) {
        self(context, element);
    }
}

/// Analysis functions, each bound to sensors, and the context that they share. It is one
/// [`Analysis`]: all of it is evaluated serially, so the context needs no lock.
///
/// ```
/// use overhear_event::{ElementView, EventName};
/// use overhear_monitor::{Group, Subscription};
///
/// /// The state of the observed program, from its sensors.
/// #[derive(Default)]
/// struct Model {
///     waiting: i64,
///     most: i64,
/// }
///
/// let of = |sensor| Subscription::all().events([EventName::user(sensor)].into());
/// let group = Group::new(Model::default())
///     .on(of("enqueue"), |model: &mut Model, _: &ElementView<'_>| {
///         model.waiting += 1;
///         model.most = model.most.max(model.waiting);
///     })
///     .on(of("dequeue"), |model: &mut Model, _: &ElementView<'_>| model.waiting -= 1)
///     .on_gap(|model, _, _| model.waiting = 0);
/// assert_eq!(group.context().most, 0);
/// ```
pub struct Group<C> {
    context: C,
    functions: Vec<(Subscription, Box<dyn UpdateFunction<C> + Send>)>,
    on_gap: Option<GapFunction<C>>,
    // For each stream the functions that are called, in the order in which they were bound.
    routes: HashMap<StreamId, Vec<usize>, BuildHasherDefault<StreamIdHasher>>,
    complaints: Vec<String>,
}

type GapFunction<C> = Box<dyn FnMut(&mut C, &StreamDescriptor, &Gap) + Send>;

impl<C> Group<C> {
    /// A group without functions.
    #[must_use]
    pub fn new(context: C) -> Self {
        Self {
            context,
            functions: Vec::new(),
            on_gap: None,
            routes: HashMap::default(),
            complaints: Vec::new(),
        }
    }

    /// Binds a function to sensors. Several may be bound to the same; they are called in the order
    /// in which they were bound.
    #[must_use]
    pub fn on(
        mut self,
        subscription: Subscription,
        function: impl UpdateFunction<C> + Send + 'static,
    ) -> Self {
        self.functions.push((subscription, Box::new(function)));
        self.routes.clear();
        self
    }

    /// Sets a function that is called when elements of any of the sensors were missed, after the
    /// functions of the group.
    #[must_use]
    pub fn on_gap(
        mut self,
        function: impl FnMut(&mut C, &StreamDescriptor, &Gap) + Send + 'static,
    ) -> Self {
        self.on_gap = Some(Box::new(function));
        self
    }

    /// The context.
    #[must_use]
    pub const fn context(&self) -> &C {
        &self.context
    }

    /// Takes the context out of the group.
    #[must_use]
    pub fn into_context(self) -> C {
        self.context
    }

    /// Sensors of a function's subscription with elements of another type: a message for each.
    #[must_use]
    pub fn complaints(&self) -> &[String] {
        &self.complaints
    }

    #[cold]
    fn meet(&mut self, stream: &StreamDescriptor) {
        let mut route = Vec::new();
        for (index, (subscription, _)) in self.functions.iter().enumerate() {
            match subscription.answer(stream) {
                SubscriptionMatch::Yes => route.push(index),
                SubscriptionMatch::No => {}
                SubscriptionMatch::OtherType(message) => self.complaints.push(message),
            }
        }
        self.routes.insert(stream.id, route);
    }
}

impl<C> Analysis for Group<C> {
    fn open(&mut self, stream: &StreamDescriptor) {
        self.meet(stream);
    }

    fn warm_up(&mut self) {
        for (_, function) in &mut self.functions {
            function.warm_up(&mut self.context);
        }
    }

    fn element(&mut self, element: &ElementView<'_>) {
        if !self.routes.contains_key(&element.stream.id) {
            self.meet(element.stream);
        }
        for &index in self.routes.get(&element.stream.id).into_iter().flatten() {
            self.functions[index].1.element(&mut self.context, element);
        }
    }

    fn gap(&mut self, stream: &StreamDescriptor, gap: &Gap) {
        if !self.routes.contains_key(&stream.id) {
            self.meet(stream);
        }
        let Some(route) = self
            .routes
            .get(&stream.id)
            .filter(|route| !route.is_empty())
        else {
            return;
        };
        for &index in route {
            self.functions[index].1.gap(&mut self.context, stream, gap);
        }
        if let Some(on_gap) = &mut self.on_gap {
            on_gap(&mut self.context, stream, gap);
        }
    }

    fn advance(&mut self, now: Timestamp) {
        for (_, function) in &mut self.functions {
            function.advance(&mut self.context, now);
        }
    }
}

impl<C: fmt::Debug> fmt::Debug for Group<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Group")
            .field("context", &self.context)
            .field("functions", &self.functions.len())
            .finish_non_exhaustive()
    }
}
