--  SPDX-License-Identifier: MIT OR Apache-2.0
--
--  Periodic tasks, the application that posix_metrics measures: each job computes between two trace
--  events, and then sleeps until the next one.

with Ada.Real_Time;
with Ada.Task_Identification;

package Application is

   Task_Count : constant := 5;

   --  Starts the tasks, and returns when all have run for this time.
   procedure Start (Run_For : Ada.Real_Time.Time_Span);

   --  The number of a task, 0 if it is none of this package.
   function Number_Of (Id : Ada.Task_Identification.Task_Id) return Natural;

end Application;
