--  SPDX-License-Identifier: MIT OR Apache-2.0
--
--  Metrics over POSIX trace streams: the package Metrics of [POSIX-metrics, section 2].
--
--  Objects of a program are not safe against use by several tasks at a time.

with Ada.Finalization;
with Ada.Real_Time;
with Ada.Task_Identification;
with Interfaces;
with System;

with POSIX.Trace;

package Metrics is

   type Metric is private;
   type Metric_Result (Size : Natural) is private;
   type Metric_Result_Element is private;

   --  The built-in metric of this name, for example "Delay Until Wakeup".
   function System_Metric (Metric_Name : String) return Metric;

   --  The execution time of a task from one of its events to another.
   function New_User_Metric
     (Metric_Name    : String;
      Initial_Event  : POSIX.Trace.Event_Identifier;
      Final_Event    : POSIX.Trace.Event_Identifier;
      Include_System : Boolean := True) return Metric;

   --  The event types that the metric requires, for the filter of the stream.
   function Events_Required_By
     (M    : Metric;
      Trid : POSIX.Trace.Trace_Identifier) return POSIX.Trace.Event_Set;

   --  Scans a stream. A pre-recorded stream is scanned from its begin, and rewound. Of an active
   --  stream the events so far are taken; a later call for the same result appends measurements.
   --  At most Size measurements can be read.
   procedure Get_Metric_Result
     (From   : in Metric;
      Trid   : in POSIX.Trace.Trace_Identifier;
      Result : in out Metric_Result);

   function Metric_Result_Element_Count (From : Metric_Result) return Natural;

   --  The measurement of this number, from 1 on, in the order of completion.
   function Get_Metric_Result_Element
     (From : Metric_Result;
      I    : Natural) return Metric_Result_Element;

   function Begin_Time (From : Metric_Result_Element) return Ada.Real_Time.Time;
   function End_Time (From : Metric_Result_Element) return Ada.Real_Time.Time;
   function Length (From : Metric_Result_Element) return Ada.Real_Time.Time_Span;

   --  Null_Task_Id unless the task is one of this program that has not been freed; Metrics.Linux
   --  has the number of every thread.
   function Task_Id (From : Metric_Result_Element) return Ada.Task_Identification.Task_Id;

   function Intermediate_Events (From : Metric_Result_Element) return Natural;

private

   --  An object of the C library, which is freed with the last copy of its handle.
   type Counted is limited record
      Copies  : Positive := 1;
      Address : aliased System.Address := System.Null_Address;
   end record;
   type Counted_Access is access Counted;

   type Free_Object is access procedure (Object : System.Address);
   pragma Convention (C, Free_Object);

   type Handle is new Ada.Finalization.Controlled with record
      Object : Counted_Access;
      Free   : Free_Object;
   end record;
   overriding procedure Adjust (Item : in out Handle);
   overriding procedure Finalize (Item : in out Handle);

   type Metric is new Handle with null record;

   type Metric_Result (Size : Natural) is record
      List : Handle;
   end record;

   --  oh_measurement
   type Metric_Result_Element is record
      Length_Ns, Begin_Ns, End_Ns    : Interfaces.Unsigned_64 := 0;
      Intermediate, Own, Key, Missed : Interfaces.Unsigned_64 := 0;
      Thread, Has_Key                : Interfaces.Unsigned_32 := 0;
   end record;
   pragma Convention (C, Metric_Result_Element);

end Metrics;
