--  SPDX-License-Identifier: MIT OR Apache-2.0

with Ada.Unchecked_Conversion;
with Ada.Unchecked_Deallocation;
with Interfaces.C;

pragma Warnings (Off, "*internal GNAT unit*");
with System.Tasking.Debug;
pragma Warnings (On, "*internal GNAT unit*");

package body Metrics is

   use Interfaces.C;
   use type Interfaces.Unsigned_32;
   use type Interfaces.Unsigned_64;

   procedure Free_Counted is new Ada.Unchecked_Deallocation (Counted, Counted_Access);

   procedure C_Metric_Free (Object : System.Address);
   pragma Import (C, C_Metric_Free, "oh_trace_metric_free");

   procedure C_Results_Free (Object : System.Address);
   pragma Import (C, C_Results_Free, "oh_trace_results_free");

   overriding procedure Adjust (Item : in out Handle) is
   begin
      if Item.Object /= null then
         Item.Object.Copies := Item.Object.Copies + 1;
      end if;
   end Adjust;

   --  Ada permits that an object is finalized twice.
   overriding procedure Finalize (Item : in out Handle) is
   begin
      if Item.Object = null then
         return;
      elsif Item.Object.Copies > 1 then
         Item.Object.Copies := Item.Object.Copies - 1;
      else
         Item.Free (Item.Object.Address);
         Free_Counted (Item.Object);
      end if;
      Item.Object := null;
   end Finalize;

   function Object (Item : Handle'Class) return System.Address is
     (if Item.Object = null then System.Null_Address else Item.Object.Address);

   function New_Metric (Address : System.Address) return Metric is
     (Ada.Finalization.Controlled with
      Object => new Counted'(Copies => 1, Address => Address),
      Free   => C_Metric_Free'Access);

   function System_Metric (Metric_Name : String) return Metric is
      function C (Metric : access System.Address; Name : char_array) return int;
      pragma Import (C, C, "oh_trace_metric_system");
      Address : aliased System.Address := System.Null_Address;
   begin
      POSIX.Trace.Check (C (Address'Access, To_C (Metric_Name)));
      return New_Metric (Address);
   end System_Metric;

   function New_User_Metric
     (Metric_Name    : String;
      Initial_Event  : POSIX.Trace.Event_Identifier;
      Final_Event    : POSIX.Trace.Event_Identifier;
      Include_System : Boolean := True) return Metric
   is
      function C
        (Metric  : access System.Address;
         Name    : char_array;
         Initial : unsigned;
         Final   : unsigned;
         System_Time : C_bool) return int;
      pragma Import (C, C, "oh_trace_metric_user");
      Address : aliased System.Address := System.Null_Address;
   begin
      POSIX.Trace.Check
        (C
           (Address'Access,
            To_C (Metric_Name),
            POSIX.Trace.To_Number (Initial_Event),
            POSIX.Trace.To_Number (Final_Event),
            C_bool (Include_System)));
      return New_Metric (Address);
   end New_User_Metric;

   function Events_Required_By
     (M    : Metric;
      Trid : POSIX.Trace.Trace_Identifier) return POSIX.Trace.Event_Set
   is
      function C
        (Metric : System.Address;
         Trid   : unsigned_long;
         Set    : access POSIX.Trace.Event_Set_Words) return int;
      pragma Import (C, C, "oh_trace_metric_events_required");
      Words : aliased POSIX.Trace.Event_Set_Words := (others => 0);
   begin
      POSIX.Trace.Check (C (Object (M), POSIX.Trace.To_Number (Trid), Words'Access));
      return POSIX.Trace.To_Event_Set (Words);
   end Events_Required_By;

   procedure Get_Metric_Result
     (From   : in Metric;
      Trid   : in POSIX.Trace.Trace_Identifier;
      Result : in out Metric_Result)
   is
      function C
        (Results : access System.Address;
         Metric  : System.Address;
         Trid    : unsigned_long;
         Cost_Ns : Interfaces.Unsigned_64) return int;
      pragma Import (C, C, "oh_trace_results_get");
      List  : Handle renames Result.List;
      Found : aliased System.Address := System.Null_Address;
   begin
      --  A copy of the result has its own measurements: only the sole owner continues them.
      if List.Object /= null and then List.Object.Copies = 1 then
         POSIX.Trace.Check
           (C (List.Object.Address'Access, Object (From), POSIX.Trace.To_Number (Trid), 0));
         return;
      end if;
      POSIX.Trace.Check (C (Found'Access, Object (From), POSIX.Trace.To_Number (Trid), 0));
      List :=
        (Ada.Finalization.Controlled with
         Object => new Counted'(Copies => 1, Address => Found),
         Free   => C_Results_Free'Access);
   end Get_Metric_Result;

   function Metric_Result_Element_Count (From : Metric_Result) return Natural is
      function C (Results : System.Address) return size_t;
      pragma Import (C, C, "oh_trace_results_count");
   begin
      return Natural (size_t'Min (C (Object (From.List)), size_t (From.Size)));
   end Metric_Result_Element_Count;

   function Get_Metric_Result_Element
     (From : Metric_Result;
      I    : Natural) return Metric_Result_Element
   is
      function C
        (Results : System.Address;
         Number  : size_t;
         Element : access Metric_Result_Element) return int;
      pragma Import (C, C, "oh_trace_results_at");
      Element : aliased Metric_Result_Element;
   begin
      if I not in 1 .. Metric_Result_Element_Count (From)
        or else C (Object (From.List), size_t (I - 1), Element'Access) /= 0
      then
         raise Constraint_Error with "the result has no measurement" & I'Image;
      end if;
      return Element;
   end Get_Metric_Result_Element;

   function Span (Ns : Interfaces.Unsigned_64) return Ada.Real_Time.Time_Span is
      use type Ada.Real_Time.Time_Span;
      Per_Second : constant := 1_000_000_000;
   begin
      return
        Ada.Real_Time.Seconds (Integer (Ns / Per_Second))
        + Ada.Real_Time.Nanoseconds (Integer (Ns mod Per_Second));
   end Span;

   --  The clock of Ada.Real_Time is CLOCK_MONOTONIC, as that of measurements.
   function Time (Ns : Interfaces.Unsigned_64) return Ada.Real_Time.Time is
     (Ada.Real_Time.Time_Of (0, Span (Ns)));

   function Begin_Time (From : Metric_Result_Element) return Ada.Real_Time.Time is
     (Time (From.Begin_Ns));

   function End_Time (From : Metric_Result_Element) return Ada.Real_Time.Time is
     (Time (From.End_Ns));

   function Length (From : Metric_Result_Element) return Ada.Real_Time.Time_Span is
     (Span (From.Length_Ns));

   --  The begin of System.Task_Primitives.Private_Data, whose components are private: the run-time
   --  system of GNAT keeps the number of the thread with each task.
   type Thread_Data is record
      Thread : unsigned_long;
      LWP    : Interfaces.C.unsigned_long;
   end record;
   pragma Convention (C, Thread_Data);

   function LWP_Of (Task_Object : System.Tasking.Task_Id) return unsigned_long is
      Data : Thread_Data;
      for Data'Address use Task_Object.Common.LL'Address;
      pragma Import (Ada, Data);
   begin
      return Data.LWP;
   end LWP_Of;

   --  Whether the data of the calling task has the kernel's number of the thread: if not, the
   --  run-time system is of another kind, and no task can be found by its thread.
   function Is_Known_Layout return Boolean is
      function Gettid return int;
      pragma Import (C, Gettid, "gettid");
   begin
      return LWP_Of (System.Tasking.Self) = unsigned_long (Gettid);
   end Is_Known_Layout;

   function Task_Id (From : Metric_Result_Element) return Ada.Task_Identification.Task_Id is
      use type System.Tasking.Task_Id;
      function To_Public is new
        Ada.Unchecked_Conversion (System.Tasking.Task_Id, Ada.Task_Identification.Task_Id);
   begin
      if From.Thread /= 0 and then Is_Known_Layout then
         for Known of System.Tasking.Debug.Known_Tasks loop
            if Known /= null and then LWP_Of (Known) = unsigned_long (From.Thread) then
               return To_Public (Known);
            end if;
         end loop;
      end if;
      return Ada.Task_Identification.Null_Task_Id;
   end Task_Id;

   function Intermediate_Events (From : Metric_Result_Element) return Natural is
      Last : constant Interfaces.Unsigned_64 := Interfaces.Unsigned_64 (Natural'Last);
   begin
      return Natural (Interfaces.Unsigned_64'Min (From.Intermediate, Last));
   end Intermediate_Events;

end Metrics;
