--  SPDX-License-Identifier: MIT OR Apache-2.0
--
--  Tests of POSIX.Trace and Metrics, without events of the kernel:
--
--     trace_tests LOG
--
--  The output has the format of the Test Anything Protocol.

with Ada.Command_Line;
with Ada.Real_Time;
with Ada.Task_Identification;
with Ada.Text_IO;
with System.Storage_Elements;

with POSIX.IO;
with POSIX.Process_Identification;
with POSIX.Trace;

with Metrics;
with Metrics.Linux;

procedure Trace_Tests is

   use Ada.Real_Time;
   use POSIX.Trace;
   use System.Storage_Elements;
   use type POSIX.Error_Code;
   use type POSIX.POSIX_String;
   use type POSIX.Process_Identification.Process_ID;

   Number, Failed : Natural := 0;

   procedure Check (Good : Boolean; Name : String) is
   begin
      Number := Number + 1;
      if not Good then
         Failed := Failed + 1;
      end if;
      Ada.Text_IO.Put_Line ((if Good then "ok" else "not ok") & Number'Image & " - " & Name);
   end Check;

   Log_File : constant POSIX.POSIX_String :=
     POSIX.To_POSIX_String (Ada.Command_Line.Argument (1));

   Initial_Event : constant Event_Identifier := Open ("Initial Event");
   Final_Event   : constant Event_Identifier := Open ("Final Event");

   procedure Attributes_Are_Kept is
      Attr : Attributes;
   begin
      Initialize (Attr);
      Check (Get_Name (Attr) = "", "a new stream has no name");
      Set_Name (Attr, "tests");
      Check (Get_Name (Attr) = "tests", "a name is kept");
      Set_Stream_Full_Policy (Attr, Stream_Until_Full);
      Set_Log_Full_Policy (Attr, Log_Append);
      Set_Inheritance (Attr, Inherited);
      Set_Stream_Size (Attr, 100_000);
      Set_Log_Size (Attr, 200_000);
      Set_Maximum_Data_Size (Attr, 100);
      Check (Get_Stream_Full_Policy (Attr) = Stream_Until_Full, "the policy of full streams");
      Check (Get_Log_Full_Policy (Attr) = Log_Append, "the policy of full logs");
      Check (Get_Inheritance (Attr) = Inherited, "the inheritance");
      Check (Get_Stream_Size (Attr) = 100_000, "the size of the stream");
      Check (Get_Log_Size (Attr) = 200_000, "the size of the log");
      Check (Get_Maximum_Data_Size (Attr) = 100, "the size of data");
      Check (Get_Generation_Version (Attr)'Length > 0, "there is a version");
      Finalize (Attr);
   end Attributes_Are_Kept;

   procedure Sets_Have_Members is
      First, Second, All_Events : Event_Set;
   begin
      Check (not Is_Member (First, Initial_Event), "a new set is empty");
      Add_Event (First, Initial_Event);
      Add_Event (Second, Final_Event);
      Add_Event_Set (First, Second);
      Check (Is_Member (First, Initial_Event) and Is_Member (First, Final_Event), "a union");
      Delete_Event_Set (First, Second);
      Check (Is_Member (First, Initial_Event) and not Is_Member (First, Final_Event), "the rest");
      Add_All_Events (All_Events);
      Check (Is_Member (All_Events, Start_Event), "all events have those of streams");
      Delete_Event (All_Events, Start_Event);
      Check (not Is_Member (All_Events, Start_Event), "a member is deleted");
      Empty (All_Events);
      Add_System_Events (All_Events);
      Check
        (Is_Member (All_Events, Stop_Event) and not Is_Member (All_Events, Final_Event),
         "system events are no user events");
   end Sets_Have_Members;

   procedure Events_Come_Out_Of_A_Stream is
      Attr      : Attributes;
      Trid      : Trace_Identifier;
      Info      : Event_Info;
      Data      : Storage_Array (1 .. 80);
      Last      : Storage_Offset;
      Available : Boolean;
      Set       : Event_Set;
   begin
      Initialize (Attr);
      Trid := Create (POSIX.Process_Identification.Null_Process_ID, Attr);
      Finalize (Attr);
      Check (not Get_Status (Trid).Running, "a new stream is suspended");
      Start (Trid);
      Check (Get_Status (Trid).Running, "a stream is started");
      Trace_Event (Initial_Event, (1, 2, 3));
      Trace_Event (Final_Event);
      Get_Next_Event (Trid, Info, Data, Last, Available);
      Check (Available and Is_Equal (Trid, Info.Event, Start_Event), "it begins with its start");
      Get_Next_Event (Trid, Info, Data, Last, Available);
      Check
        (Is_Equal (Trid, Info.Event, Initial_Event) and Data (1 .. Last) = (1, 2, 3),
         "an event has its data");
      Check
        (Info.Process = POSIX.Process_Identification.Get_Process_ID
         and Info.Truncation = Not_Truncated,
         "and its process");
      Check (Get_Name (Trid, Info.Event) = "Initial Event", "and its type a name");
      Try_Get_Next_Event (Trid, Info, Data, Last, Available);
      Check (Available and Last = 0, "an event without data");
      Try_Get_Next_Event (Trid, Info, Data, Last, Available);
      Check (not Available, "there is no further event");
      Add_Event (Set, Initial_Event);
      Set_Filter (Trid, Set);
      Check (Is_Member (Get_Filter (Trid), Initial_Event), "a filter is set");
      Subtract_From_Filter (Trid, Set);
      Check (not Is_Member (Get_Filter (Trid), Initial_Event), "and subtracted from");
      Stop (Trid);
      Shutdown (Trid);
      begin
         Start (Trid);
         Check (False, "a stream that was shut down is refused");
      exception
         when POSIX.POSIX_Error =>
            Check
              (POSIX.Get_Error_Code = POSIX.Invalid_Argument,
               "a stream that was shut down is refused");
      end;
   end Events_Come_Out_Of_A_Stream;

   procedure Record_Measurements (Count : Positive) is
      Attr : Attributes;
      Trid : Trace_Identifier;
      File : constant POSIX.IO.File_Descriptor :=
        POSIX.IO.Open_Or_Create (Log_File, POSIX.IO.Read_Write);
   begin
      Initialize (Attr);
      Trid := Create_With_Log (POSIX.Process_Identification.Null_Process_ID, Attr, File);
      Finalize (Attr);
      Start (Trid);
      for I in 1 .. Count loop
         Trace_Event (Initial_Event);
         Trace_Event (Final_Event);
      end loop;
      Shutdown (Trid);
      POSIX.IO.Close (File);
   end Record_Measurements;

   procedure Logs_Can_Be_Read_Again is
      File      : constant POSIX.IO.File_Descriptor :=
        POSIX.IO.Open (Log_File, POSIX.IO.Read_Only);
      Trid      : constant Trace_Identifier := Open (File);
      Info      : Event_Info;
      Data      : Storage_Array (1 .. 80);
      Last      : Storage_Offset;
      Available : Boolean;
      Counts    : array (1 .. 2) of Natural := (0, 0);
      Types     : Natural := 0;
      Event     : Event_Identifier;
   begin
      for Count of Counts loop
         loop
            Get_Next_Event (Trid, Info, Data, Last, Available);
            exit when not Available;
            Count := Count + 1;
         end loop;
         Rewind (Trid);
      end loop;
      Check (Counts (1) >= 22 and Counts (1) = Counts (2), "a log is read twice");
      Rewind_Event_Types (Trid);
      loop
         Get_Next_Event_Type (Trid, Event, Available);
         exit when not Available;
         Types := Types + 1;
         Check (Get_Name (Trid, Event)'Length > 0, "an event type has a name");
      end loop;
      Check (Types >= 4, "a log has its event types");
      Close (Trid);
      POSIX.IO.Close (File);
   end Logs_Can_Be_Read_Again;

   procedure Metrics_Need_Their_Events is
      use Metrics;
      Unknown : Metric;
      pragma Unreferenced (Unknown);
   begin
      Unknown := System_Metric ("Nonsense");
      Check (False, "an unknown metric is refused");
   exception
      when POSIX.POSIX_Error =>
         Check (POSIX.Get_Error_Code = 2, "an unknown metric is refused");
   end Metrics_Need_Their_Events;

   --  User metrics leave out times off the CPU, so they need events of the kernel.
   procedure Log_Without_The_Kernel_Is_Refused is
      use Metrics;
      File   : constant POSIX.IO.File_Descriptor :=
        POSIX.IO.Open (Log_File, POSIX.IO.Read_Only);
      Trid   : constant Trace_Identifier := Open (File);
      M      : constant Metric := New_User_Metric ("My Metric", Initial_Event, Final_Event);
      Set    : constant Event_Set := Events_Required_By (M, Trid);
      Result : Metric_Result (10);
   begin
      Check (Is_Member (Set, Initial_Event) and Is_Member (Set, Final_Event), "required events");
      Check (Metric_Result_Element_Count (Result) = 0, "a new result is empty");
      begin
         Get_Metric_Result (M, Trid, Result);
         Check (False, "a log without events of the kernel is refused");
      exception
         when POSIX.POSIX_Error =>
            Check (POSIX.Get_Error_Code = 61, "a log without events of the kernel is refused");
      end;
      Close (Trid);
      POSIX.IO.Close (File);
   end Log_Without_The_Kernel_Is_Refused;

   --  The metrics of an active stream: copies are independent, and results are bounded by Size.
   procedure Results_Of_A_Stream_Are_Bounded is
      use Metrics;
      use type Ada.Task_Identification.Task_Id;
      Attr    : Attributes;
      Trid    : Trace_Identifier;
      M       : constant Metric := New_User_Metric ("My Metric", Initial_Event, Final_Event);
      Copy    : Metric;
      Result  : Metric_Result (4);
      Before  : Time;
      Measure : Metric_Result_Element;
   begin
      Initialize (Attr);
      Trid := Create (POSIX.Process_Identification.Null_Process_ID, Attr);
      Finalize (Attr);
      Start (Trid);
      Before := Clock;
      for I in 1 .. 3 loop
         Trace_Event (Initial_Event);
         Trace_Event (Final_Event);
      end loop;
      Copy := M;
      Get_Metric_Result (Copy, Trid, Result);
      Check (Metric_Result_Element_Count (Result) = 3, "three measurements of an active stream");
      Measure := Get_Metric_Result_Element (Result, 1);
      Check
        (Begin_Time (Measure) >= Before and End_Time (Measure) <= Clock
         and Begin_Time (Measure) <= End_Time (Measure),
         "times are those of Ada.Real_Time");
      Check (Length (Measure) <= End_Time (Measure) - Begin_Time (Measure), "a length");
      Check (Task_Id (Measure) = Ada.Task_Identification.Current_Task, "the task is this one");
      Check
        (Intermediate_Events (Measure) = 1 and Metrics.Linux.Own_Events (Measure) = 1
         and Metrics.Linux.Missed (Measure) = 0 and Metrics.Linux.Thread (Measure) > 0,
         "one event in the measurement, the final one");
      for I in 1 .. 3 loop
         Trace_Event (Initial_Event);
         Trace_Event (Final_Event);
      end loop;
      Get_Metric_Result (M, Trid, Result);
      Check
        (Metric_Result_Element_Count (Result) = 4 and Metrics.Linux.Found (Result) = 6,
         "further measurements are appended, and at most Size can be got");
      Check (Metrics.Linux.Missed (Result) = 0, "no event was lost");
      begin
         Measure := Get_Metric_Result_Element (Result, 5);
         Check (False, "there is no measurement beyond");
      exception
         when Constraint_Error =>
            Check (True, "there is no measurement beyond");
      end;
      Shutdown (Trid);
   end Results_Of_A_Stream_Are_Bounded;

begin
   Attributes_Are_Kept;
   Sets_Have_Members;
   Events_Come_Out_Of_A_Stream;
   Record_Measurements (10);
   Logs_Can_Be_Read_Again;
   Metrics_Need_Their_Events;
   Log_Without_The_Kernel_Is_Refused;
   Results_Of_A_Stream_Are_Bounded;
   Ada.Text_IO.Put_Line ("1.." & Number'Image (2 .. Number'Image'Last));
   if Failed > 0 then
      Ada.Command_Line.Set_Exit_Status (1);
   end if;
end Trace_Tests;
