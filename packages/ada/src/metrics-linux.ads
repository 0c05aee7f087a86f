--  SPDX-License-Identifier: MIT OR Apache-2.0
--
--  Values of measurements and results beyond those of [POSIX-metrics, section 2].

package Metrics.Linux is

   --  The number of the thread, as gettid returns it. A task of another program and a task that has
   --  been freed have one, too.
   function Thread (From : Metric_Result_Element) return Natural;

   --  The number of intermediate events of the task itself: each has cost the task time.
   function Own_Events (From : Metric_Result_Element) return Natural;

   --  The number of events that were lost during the measurement.
   function Missed (From : Metric_Result_Element) return Natural;

   --  The number of events of the metric that were lost in the whole stream. Measurements may be
   --  missing because of them.
   function Missed (From : Metric_Result) return Natural;

   --  The number of measurements that were found. Metric_Result_Element_Count is at most Size.
   function Found (From : Metric_Result) return Natural;

end Metrics.Linux;
