--  SPDX-License-Identifier: MIT OR Apache-2.0
--
--  What measurements and their results have besides the values of [POSIX-metrics, section 2].

package Metrics.Linux is

   --  The number of the thread, as gettid returns it: also of a task of another program, and of one
   --  that has been freed.
   function Thread (From : Metric_Result_Element) return Natural;

   --  The intermediate events that the task itself has caused: each has cost it time.
   function Own_Events (From : Metric_Result_Element) return Natural;

   --  The number of events that were lost during the measurement.
   function Missed (From : Metric_Result_Element) return Natural;

   --  The number of events of the metric that were lost in the whole stream. Measurements may be
   --  missing because of them.
   function Missed (From : Metric_Result) return Natural;

   --  The measurements that were found. Metric_Result_Element_Count is at most Size.
   function Found (From : Metric_Result) return Natural;

end Metrics.Linux;
