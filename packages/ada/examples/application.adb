--  SPDX-License-Identifier: MIT OR Apache-2.0

with POSIX.Trace;

package body Application is

   use Ada.Real_Time;

   task type Periodic is
      entry Start (First_Activation, Last_Activation : Time; Task_Period : Time_Span);
      entry Has_Ended;
   end Periodic;

   Initial_Event : POSIX.Trace.Event_Identifier;
   Final_Event   : POSIX.Trace.Event_Identifier;

   procedure Application_Code is
      Until_Time : constant Time := Clock + Microseconds (200);
   begin
      POSIX.Trace.Trace_Event (Initial_Event);
      while Clock < Until_Time loop
         null;
      end loop;
      POSIX.Trace.Trace_Event (Final_Event);
   end Application_Code;

   task body Periodic is
      Next_Activation, Last : Time;
      Period                : Time_Span;
   begin
      accept Start (First_Activation, Last_Activation : Time; Task_Period : Time_Span) do
         Next_Activation := First_Activation;
         Last := Last_Activation;
         Period := Task_Period;
      end Start;
      delay until Next_Activation;
      while Next_Activation < Last loop
         Application_Code;
         Next_Activation := Next_Activation + Period;
         delay until Next_Activation;
      end loop;
      accept Has_Ended;
   end Periodic;

   --  Declared at library level: they are not freed before the program ends, so that measurements
   --  can have their Task_Id.
   Tasks : array (1 .. Task_Count) of Periodic;

   procedure Start (Run_For : Time_Span) is
      First : constant Time := Clock + Milliseconds (10);
   begin
      Initial_Event := POSIX.Trace.Open ("Initial Event");
      Final_Event := POSIX.Trace.Open ("Final Event");
      for I in Tasks'Range loop
         Tasks (I).Start (First, First + Run_For, Milliseconds (5 + 5 * I));
      end loop;
      for Each of Tasks loop
         Each.Has_Ended;
      end loop;
   end Start;

   function Number_Of (Id : Ada.Task_Identification.Task_Id) return Natural is
      use type Ada.Task_Identification.Task_Id;
   begin
      for I in Tasks'Range loop
         if Tasks (I)'Identity = Id then
            return I;
         end if;
      end loop;
      return 0;
   end Number_Of;

end Application;
