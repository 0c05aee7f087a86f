--  SPDX-License-Identifier: MIT OR Apache-2.0
--
--  The example of [POSIX-metrics, section 2]: traces an application of periodic tasks into a log,
--  with the events that three metrics require; then opens the log, and prints the measurements.
--
--     posix_metrics [LOG]
--
--  Exit status: 0, or 77 and a message where events of the kernel are not permitted. Then the
--  measurements that need them are missing.

with Ada.Command_Line;
with Ada.Exceptions;
with Ada.Integer_Text_IO;
with Ada.Real_Time;
with Ada.Text_IO;

with POSIX.IO;
with POSIX.Process_Identification;
with POSIX.Trace;

with Metrics;
with Metrics.Linux;

with Application;

procedure POSIX_Metrics is

   use Ada.Real_Time;
   use Metrics;
   use type POSIX.Error_Code;

   Log_File : constant POSIX.POSIX_String :=
     (if Ada.Command_Line.Argument_Count > 0
      then POSIX.To_POSIX_String (Ada.Command_Line.Argument (1))
      else "Logfile");

   No_Data : constant POSIX.Error_Code := 61;

   Began : Time;

   procedure Record_Application (M1, M2, M3 : Metric) is
      Attr               : POSIX.Trace.Attributes;
      Trid               : POSIX.Trace.Trace_Identifier;
      File               : POSIX.IO.File_Descriptor;
      Interesting_Events : POSIX.Trace.Event_Set;
      All_Events         : POSIX.Trace.Event_Set;
   begin
      POSIX.Trace.Initialize (Attr);
      File := POSIX.IO.Open_Or_Create (Log_File, POSIX.IO.Read_Write);
      Trid :=
        POSIX.Trace.Create_With_Log
          (POSIX.Process_Identification.Null_Process_ID, Attr, File);
      POSIX.Trace.Add_Event_Set (Interesting_Events, Events_Required_By (M1, Trid));
      POSIX.Trace.Add_Event_Set (Interesting_Events, Events_Required_By (M2, Trid));
      POSIX.Trace.Add_Event_Set (Interesting_Events, Events_Required_By (M3, Trid));
      POSIX.Trace.Add_All_Events (All_Events);
      POSIX.Trace.Set_Filter (Trid, All_Events);
      POSIX.Trace.Subtract_From_Filter (Trid, Interesting_Events);
      POSIX.Trace.Start (Trid);
      Began := Clock;
      Application.Start (Run_For => Milliseconds (200));
      POSIX.Trace.Shutdown (Trid);
      POSIX.Trace.Finalize (Attr);
      POSIX.IO.Close (File);
   end Record_Application;

   procedure Put_Us (Span : Time_Span; Width : Positive) is
   begin
      Ada.Integer_Text_IO.Put (Span / Microseconds (1), Width);
   end Put_Us;

   procedure Show_Result_Element (Measure : Metric_Result_Element) is
      use Ada.Integer_Text_IO;
      Number : constant Natural := Application.Number_Of (Task_Id (Measure));
   begin
      Put ((if Number > 0 then Number else Metrics.Linux.Thread (Measure)), 8);
      Put_Us (Length (Measure), 8);
      Put_Us (Begin_Time (Measure) - Began, 12);
      Put_Us (End_Time (Measure) - Began, 12);
      Put (Intermediate_Events (Measure), 12);
      Ada.Text_IO.New_Line;
   end Show_Result_Element;

   procedure Show_Results (Title : String; M : Metric) is
      File    : POSIX.IO.File_Descriptor;
      Trid    : POSIX.Trace.Trace_Identifier;
      Result  : Metric_Result (Size => 10_000);
      N       : Natural;
      Measure : Metric_Result_Element;
   begin
      Ada.Text_IO.Put_Line (Title);
      File := POSIX.IO.Open (Log_File, POSIX.IO.Read_Only);
      Trid := POSIX.Trace.Open (File);
      Get_Metric_Result (M, Trid, Result);
      Ada.Text_IO.Put_Line ("    Task  Length  Begin Time    End Time  Int Events");
      N := Metric_Result_Element_Count (Result);
      for I in 1 .. N loop
         Measure := Get_Metric_Result_Element (Result, I);
         Show_Result_Element (Measure);
      end loop;
      if Metrics.Linux.Missed (Result) > 0 then
         Ada.Text_IO.Put_Line ("lost events:" & Metrics.Linux.Missed (Result)'Image);
      end if;
      POSIX.Trace.Close (Trid);
      POSIX.IO.Close (File);
   exception
      when Error : POSIX.POSIX_Error =>
         if POSIX.Get_Error_Code /= No_Data then
            raise;
         end if;
         Ada.Text_IO.Put_Line (Ada.Exceptions.Exception_Message (Error));
         POSIX.Trace.Close (Trid);
         POSIX.IO.Close (File);
         Ada.Command_Line.Set_Exit_Status (77);
   end Show_Results;

   M1            : Metric;
   M2            : Metric;
   M3            : Metric;
   Initial_Event : POSIX.Trace.Event_Identifier;
   Final_Event   : POSIX.Trace.Event_Identifier;
begin
   M1 := System_Metric ("Delay Until Wakeup");
   M2 := System_Metric ("Schedule And Dispatch");
   Initial_Event := POSIX.Trace.Open ("Initial Event");
   Final_Event := POSIX.Trace.Open ("Final Event");
   M3 := New_User_Metric ("My Metric", Initial_Event, Final_Event, Include_System => False);

   Record_Application (M1, M2, M3);

   Show_Results ("Delay Until Wakeup", M1);
   Show_Results ("Schedule And Dispatch", M2);
   Show_Results ("My Metric", M3);
end POSIX_Metrics;
