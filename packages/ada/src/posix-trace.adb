--  SPDX-License-Identifier: MIT OR Apache-2.0

with Interfaces.C.Strings;

package body POSIX.Trace is

   use Interfaces.C;
   use type System.Storage_Elements.Storage_Offset;

   package Storage renames System.Storage_Elements;

   --  The constants of <trace.h>; check/constants.c compares them with the header.

   Stream_Policies : constant array (Stream_Full_Policy) of int := (1, 2, 3);
   Log_Policies    : constant array (Log_Full_Policy) of int := (1, 2, 4);
   Set_Eventset    : constant int := 1;
   Add_Eventset    : constant int := 2;
   Sub_Eventset    : constant int := 3;
   Wopid_Events    : constant int := 1;
   System_Events   : constant int := 2;
   All_Events      : constant int := 3;

   Trace_Name_Max  : constant := 64;

   --  struct posix_trace_event_info
   type C_Event_Info is record
      Event      : unsigned;
      Process    : int;
      Address    : System.Address;
      Thread     : unsigned_long;
      Stamp      : Time_Stamp;
      Truncation : int;
      Thread_ID  : int;
   end record;
   pragma Convention (C, C_Event_Info);

   --  struct posix_trace_status_info
   type C_Status is array (0 .. 6) of int;
   pragma Convention (C, C_Status);

   procedure Check (Result : int) is
      function Last_Error return Interfaces.C.Strings.chars_ptr;
      pragma Import (C, Last_Error, "oh_posix_trace_last_error");
   begin
      if Result /= 0 then
         Raise_POSIX_Error (Error_Code (Result), Interfaces.C.Strings.Value (Last_Error));
      end if;
   end Check;

   function Text (Characters : char_array) return POSIX_String is
     (To_POSIX_String (To_Ada (Characters)));

   ----------------
   -- Attributes --
   ----------------

   procedure Initialize (Attr : in out Attributes) is
      function C (Attr : access Attribute_Words) return int;
      pragma Import (C, C, "posix_trace_attr_init");
   begin
      Check (C (Attr.Words'Access));
   end Initialize;

   procedure Finalize (Attr : in out Attributes) is
      function C (Attr : access Attribute_Words) return int;
      pragma Import (C, C, "posix_trace_attr_destroy");
   begin
      Check (C (Attr.Words'Access));
   end Finalize;

   function Get_Name (Attr : Attributes) return POSIX_String is
      function C (Attr : access constant Attribute_Words; Name : out char_array) return int;
      pragma Import (C, C, "posix_trace_attr_getname");
      Name : char_array (0 .. Trace_Name_Max) := (others => nul);
   begin
      Check (C (Attr.Words'Access, Name));
      return Text (Name);
   end Get_Name;

   procedure Set_Name (Attr : in out Attributes; Name : POSIX_String) is
      function C (Attr : access Attribute_Words; Name : char_array) return int;
      pragma Import (C, C, "posix_trace_attr_setname");
   begin
      Check (C (Attr.Words'Access, To_C (To_String (Name))));
   end Set_Name;

   function Get_Generation_Version (Attr : Attributes) return POSIX_String is
      function C (Attr : access constant Attribute_Words; Name : out char_array) return int;
      pragma Import (C, C, "posix_trace_attr_getgenversion");
      Version : char_array (0 .. Trace_Name_Max) := (others => nul);
   begin
      Check (C (Attr.Words'Access, Version));
      return Text (Version);
   end Get_Generation_Version;

   function Get_Inheritance (Attr : Attributes) return Inheritance_Policy is
      function C (Attr : access constant Attribute_Words; Policy : access int) return int;
      pragma Import (C, C, "posix_trace_attr_getinherited");
      Policy : aliased int := 0;
   begin
      Check (C (Attr.Words'Access, Policy'Access));
      return Inheritance_Policy'Val (Policy);
   end Get_Inheritance;

   procedure Set_Inheritance (Attr : in out Attributes; Policy : Inheritance_Policy) is
      function C (Attr : access Attribute_Words; Policy : int) return int;
      pragma Import (C, C, "posix_trace_attr_setinherited");
   begin
      Check (C (Attr.Words'Access, Inheritance_Policy'Pos (Policy)));
   end Set_Inheritance;

   function Get_Stream_Full_Policy (Attr : Attributes) return Stream_Full_Policy is
      function C (Attr : access constant Attribute_Words; Policy : access int) return int;
      pragma Import (C, C, "posix_trace_attr_getstreamfullpolicy");
      Number : aliased int := 0;
   begin
      Check (C (Attr.Words'Access, Number'Access));
      for Policy in Stream_Policies'Range loop
         if Stream_Policies (Policy) = Number then
            return Policy;
         end if;
      end loop;
      raise Program_Error with "an unknown policy of full streams";
   end Get_Stream_Full_Policy;

   procedure Set_Stream_Full_Policy (Attr : in out Attributes; Policy : Stream_Full_Policy) is
      function C (Attr : access Attribute_Words; Policy : int) return int;
      pragma Import (C, C, "posix_trace_attr_setstreamfullpolicy");
   begin
      Check (C (Attr.Words'Access, Stream_Policies (Policy)));
   end Set_Stream_Full_Policy;

   function Get_Log_Full_Policy (Attr : Attributes) return Log_Full_Policy is
      function C (Attr : access constant Attribute_Words; Policy : access int) return int;
      pragma Import (C, C, "posix_trace_attr_getlogfullpolicy");
      Number : aliased int := 0;
   begin
      Check (C (Attr.Words'Access, Number'Access));
      for Policy in Log_Policies'Range loop
         if Log_Policies (Policy) = Number then
            return Policy;
         end if;
      end loop;
      raise Program_Error with "an unknown policy of full logs";
   end Get_Log_Full_Policy;

   procedure Set_Log_Full_Policy (Attr : in out Attributes; Policy : Log_Full_Policy) is
      function C (Attr : access Attribute_Words; Policy : int) return int;
      pragma Import (C, C, "posix_trace_attr_setlogfullpolicy");
   begin
      Check (C (Attr.Words'Access, Log_Policies (Policy)));
   end Set_Log_Full_Policy;

   function Get_Stream_Size (Attr : Attributes) return Natural is
      function C (Attr : access constant Attribute_Words; Bytes : access size_t) return int;
      pragma Import (C, C, "posix_trace_attr_getstreamsize");
      Bytes : aliased size_t := 0;
   begin
      Check (C (Attr.Words'Access, Bytes'Access));
      return Natural (size_t'Min (Bytes, size_t (Natural'Last)));
   end Get_Stream_Size;

   procedure Set_Stream_Size (Attr : in out Attributes; Bytes : Natural) is
      function C (Attr : access Attribute_Words; Bytes : size_t) return int;
      pragma Import (C, C, "posix_trace_attr_setstreamsize");
   begin
      Check (C (Attr.Words'Access, size_t (Bytes)));
   end Set_Stream_Size;

   function Get_Log_Size (Attr : Attributes) return Natural is
      function C (Attr : access constant Attribute_Words; Bytes : access size_t) return int;
      pragma Import (C, C, "posix_trace_attr_getlogsize");
      Bytes : aliased size_t := 0;
   begin
      Check (C (Attr.Words'Access, Bytes'Access));
      return Natural (size_t'Min (Bytes, size_t (Natural'Last)));
   end Get_Log_Size;

   procedure Set_Log_Size (Attr : in out Attributes; Bytes : Natural) is
      function C (Attr : access Attribute_Words; Bytes : size_t) return int;
      pragma Import (C, C, "posix_trace_attr_setlogsize");
   begin
      Check (C (Attr.Words'Access, size_t (Bytes)));
   end Set_Log_Size;

   function Get_Maximum_Data_Size (Attr : Attributes) return Natural is
      function C (Attr : access constant Attribute_Words; Bytes : access size_t) return int;
      pragma Import (C, C, "posix_trace_attr_getmaxdatasize");
      Bytes : aliased size_t := 0;
   begin
      Check (C (Attr.Words'Access, Bytes'Access));
      return Natural (size_t'Min (Bytes, size_t (Natural'Last)));
   end Get_Maximum_Data_Size;

   procedure Set_Maximum_Data_Size (Attr : in out Attributes; Bytes : Natural) is
      function C (Attr : access Attribute_Words; Bytes : size_t) return int;
      pragma Import (C, C, "posix_trace_attr_setmaxdatasize");
   begin
      Check (C (Attr.Words'Access, size_t (Bytes)));
   end Set_Maximum_Data_Size;

   -----------------
   -- Event types --
   -----------------

   function Open (Name : POSIX_String) return Event_Identifier is
      function C (Name : char_array; Event : access unsigned) return int;
      pragma Import (C, C, "posix_trace_eventid_open");
      Event : aliased unsigned := 0;
   begin
      Check (C (To_C (To_String (Name)), Event'Access));
      return Event_Identifier (Event);
   end Open;

   function Open (Trid : Trace_Identifier; Name : POSIX_String) return Event_Identifier is
      function C (Trid : unsigned_long; Name : char_array; Event : access unsigned) return int;
      pragma Import (C, C, "posix_trace_trid_eventid_open");
      Event : aliased unsigned := 0;
   begin
      Check (C (unsigned_long (Trid), To_C (To_String (Name)), Event'Access));
      return Event_Identifier (Event);
   end Open;

   function Get_Name (Trid : Trace_Identifier; Event : Event_Identifier) return POSIX_String is
      function C (Trid : unsigned_long; Event : unsigned; Name : out char_array) return int;
      pragma Import (C, C, "posix_trace_eventid_get_name");
      Name : char_array (0 .. Maximum_Event_Name) := (others => nul);
   begin
      Check (C (unsigned_long (Trid), unsigned (Event), Name));
      return Text (Name);
   end Get_Name;

   function Is_Equal (Trid : Trace_Identifier; Left, Right : Event_Identifier) return Boolean is
      function C (Trid : unsigned_long; Left, Right : unsigned) return int;
      pragma Import (C, C, "posix_trace_eventid_equal");
   begin
      return C (unsigned_long (Trid), unsigned (Left), unsigned (Right)) /= 0;
   end Is_Equal;

   procedure Rewind_Event_Types (Trid : Trace_Identifier) is
      function C (Trid : unsigned_long) return int;
      pragma Import (C, C, "posix_trace_eventtypelist_rewind");
   begin
      Check (C (unsigned_long (Trid)));
   end Rewind_Event_Types;

   procedure Get_Next_Event_Type
     (Trid      : Trace_Identifier;
      Event     : out Event_Identifier;
      Available : out Boolean)
   is
      function C
        (Trid : unsigned_long; Event : access unsigned; Unavailable : access int) return int;
      pragma Import (C, C, "posix_trace_eventtypelist_getnext_id");
      Number      : aliased unsigned := 0;
      Unavailable : aliased int := 0;
   begin
      Check (C (unsigned_long (Trid), Number'Access, Unavailable'Access));
      Event     := Event_Identifier (Number);
      Available := Unavailable = 0;
   end Get_Next_Event_Type;

   ----------
   -- Sets --
   ----------

   procedure Add_Event (Set : in out Event_Set; Event : Event_Identifier) is
      function C (Event : unsigned; Set : access Event_Set_Words) return int;
      pragma Import (C, C, "posix_trace_eventset_add");
   begin
      Check (C (unsigned (Event), Set.Words'Access));
   end Add_Event;

   procedure Delete_Event (Set : in out Event_Set; Event : Event_Identifier) is
      function C (Event : unsigned; Set : access Event_Set_Words) return int;
      pragma Import (C, C, "posix_trace_eventset_del");
   begin
      Check (C (unsigned (Event), Set.Words'Access));
   end Delete_Event;

   function Is_Member (Set : Event_Set; Event : Event_Identifier) return Boolean is
      function C
        (Event  : unsigned;
         Set    : access constant Event_Set_Words;
         Result : access int) return int;
      pragma Import (C, C, "posix_trace_eventset_ismember");
      Result : aliased int := 0;
   begin
      Check (C (unsigned (Event), Set.Words'Access, Result'Access));
      return Result /= 0;
   end Is_Member;

   --  <trace.h> has no function for whole sets. A set has one bit for each event type.

   procedure Add_Event_Set (Set : in out Event_Set; Others_To_Add : Event_Set) is
      use type Interfaces.Unsigned_64;
   begin
      for I in Set.Words'Range loop
         Set.Words (I) := Set.Words (I) or Others_To_Add.Words (I);
      end loop;
   end Add_Event_Set;

   procedure Delete_Event_Set (Set : in out Event_Set; Others_To_Delete : Event_Set) is
      use type Interfaces.Unsigned_64;
   begin
      for I in Set.Words'Range loop
         Set.Words (I) := Set.Words (I) and not Others_To_Delete.Words (I);
      end loop;
   end Delete_Event_Set;

   procedure Add_Kind (Set : in out Event_Set; Kind : int) is
      function C (Set : access Event_Set_Words; Kind : int) return int;
      pragma Import (C, C, "posix_trace_eventset_fill");
      Filled : Event_Set;
   begin
      Check (C (Filled.Words'Access, Kind));
      Add_Event_Set (Set, Filled);
   end Add_Kind;

   procedure Add_All_Events (Set : in out Event_Set) is
   begin
      Add_Kind (Set, All_Events);
   end Add_All_Events;

   procedure Add_System_Events (Set : in out Event_Set) is
   begin
      Add_Kind (Set, System_Events);
   end Add_System_Events;

   procedure Add_Process_Independent_Events (Set : in out Event_Set) is
   begin
      Add_Kind (Set, Wopid_Events);
   end Add_Process_Independent_Events;

   procedure Empty (Set : in out Event_Set) is
   begin
      Set.Words := (others => 0);
   end Empty;

   -------------
   -- Streams --
   -------------

   function Create
     (For_Process : Process_Identification.Process_ID;
      Attr        : Attributes) return Trace_Identifier
   is
      function C
        (Process : int;
         Attr    : access constant Attribute_Words;
         Trid    : access unsigned_long) return int;
      pragma Import (C, C, "posix_trace_create");
      Trid : aliased unsigned_long := 0;
   begin
      Check
        (C
           (Process_Identification.To_Number (For_Process), Attr.Words'Access, Trid'Access));
      return Trace_Identifier (Trid);
   end Create;

   function Create_With_Log
     (For_Process : Process_Identification.Process_ID;
      Attr        : Attributes;
      File        : IO.File_Descriptor) return Trace_Identifier
   is
      function C
        (Process : int;
         Attr    : access constant Attribute_Words;
         File    : int;
         Trid    : access unsigned_long) return int;
      pragma Import (C, C, "posix_trace_create_withlog");
      Trid : aliased unsigned_long := 0;
   begin
      Check
        (C
           (Process_Identification.To_Number (For_Process),
            Attr.Words'Access,
            int (File),
            Trid'Access));
      return Trace_Identifier (Trid);
   end Create_With_Log;

   procedure Start (Trid : Trace_Identifier) is
      function C (Trid : unsigned_long) return int;
      pragma Import (C, C, "posix_trace_start");
   begin
      Check (C (unsigned_long (Trid)));
   end Start;

   procedure Stop (Trid : Trace_Identifier) is
      function C (Trid : unsigned_long) return int;
      pragma Import (C, C, "posix_trace_stop");
   begin
      Check (C (unsigned_long (Trid)));
   end Stop;

   procedure Clear (Trid : Trace_Identifier) is
      function C (Trid : unsigned_long) return int;
      pragma Import (C, C, "posix_trace_clear");
   begin
      Check (C (unsigned_long (Trid)));
   end Clear;

   procedure Flush (Trid : Trace_Identifier) is
      function C (Trid : unsigned_long) return int;
      pragma Import (C, C, "posix_trace_flush");
   begin
      Check (C (unsigned_long (Trid)));
   end Flush;

   procedure Shutdown (Trid : Trace_Identifier) is
      function C (Trid : unsigned_long) return int;
      pragma Import (C, C, "posix_trace_shutdown");
   begin
      Check (C (unsigned_long (Trid)));
   end Shutdown;

   procedure Change_Filter (Trid : Trace_Identifier; Set : Event_Set; How : int) is
      function C
        (Trid : unsigned_long; Set : access constant Event_Set_Words; How : int) return int;
      pragma Import (C, C, "posix_trace_set_filter");
   begin
      Check (C (unsigned_long (Trid), Set.Words'Access, How));
   end Change_Filter;

   procedure Set_Filter (Trid : Trace_Identifier; Set : Event_Set) is
   begin
      Change_Filter (Trid, Set, Set_Eventset);
   end Set_Filter;

   procedure Add_To_Filter (Trid : Trace_Identifier; Set : Event_Set) is
   begin
      Change_Filter (Trid, Set, Add_Eventset);
   end Add_To_Filter;

   procedure Subtract_From_Filter (Trid : Trace_Identifier; Set : Event_Set) is
   begin
      Change_Filter (Trid, Set, Sub_Eventset);
   end Subtract_From_Filter;

   function Get_Filter (Trid : Trace_Identifier) return Event_Set is
      function C (Trid : unsigned_long; Set : access Event_Set_Words) return int;
      pragma Import (C, C, "posix_trace_get_filter");
      Set : Event_Set;
   begin
      Check (C (unsigned_long (Trid), Set.Words'Access));
      return Set;
   end Get_Filter;

   procedure Get_Attributes (Trid : Trace_Identifier; Attr : in out Attributes) is
      function C (Trid : unsigned_long; Attr : access Attribute_Words) return int;
      pragma Import (C, C, "posix_trace_get_attr");
   begin
      Check (C (unsigned_long (Trid), Attr.Words'Access));
   end Get_Attributes;

   function Get_Status (Trid : Trace_Identifier) return Stream_Status is
      function C (Trid : unsigned_long; Status : access C_Status) return int;
      pragma Import (C, C, "posix_trace_get_status");
      Status : aliased C_Status := (others => 0);
   begin
      Check (C (unsigned_long (Trid), Status'Access));
      return
        (Running     => Status (0) = 1,
         Full        => Status (1) = 1,
         Overrun     => Status (2) = 1,
         Flushing    => Status (3) = 1,
         Flush_Error => Error_Code (Status (4)),
         Log_Full    => Status (5) = 1,
         Log_Overrun => Status (6) = 1);
   end Get_Status;

   ----------------------
   -- Traced processes --
   ----------------------

   procedure C_Trace_Event (Event : unsigned; Data : System.Address; Length : size_t);
   pragma Import (C, C_Trace_Event, "posix_trace_event");

   procedure Trace_Event (Event : Event_Identifier) is
   begin
      C_Trace_Event (unsigned (Event), System.Null_Address, 0);
   end Trace_Event;

   procedure Trace_Event (Event : Event_Identifier; Data : Storage.Storage_Array) is
   begin
      C_Trace_Event (unsigned (Event), Data'Address, Data'Length);
   end Trace_Event;

   ---------------
   -- Analysers --
   ---------------

   function Open (File : IO.File_Descriptor) return Trace_Identifier is
      function C (File : int; Trid : access unsigned_long) return int;
      pragma Import (C, C, "posix_trace_open");
      Trid : aliased unsigned_long := 0;
   begin
      Check (C (int (File), Trid'Access));
      return Trace_Identifier (Trid);
   end Open;

   procedure Rewind (Trid : Trace_Identifier) is
      function C (Trid : unsigned_long) return int;
      pragma Import (C, C, "posix_trace_rewind");
   begin
      Check (C (unsigned_long (Trid)));
   end Rewind;

   procedure Close (Trid : Trace_Identifier) is
      function C (Trid : unsigned_long) return int;
      pragma Import (C, C, "posix_trace_close");
   begin
      Check (C (unsigned_long (Trid)));
   end Close;

   type C_Next is access function
     (Trid        : unsigned_long;
      Info        : access C_Event_Info;
      Data        : System.Address;
      Bytes       : size_t;
      Length      : access size_t;
      Unavailable : access int) return int;
   pragma Convention (C, C_Next);

   function C_Getnext
     (Trid        : unsigned_long;
      Info        : access C_Event_Info;
      Data        : System.Address;
      Bytes       : size_t;
      Length      : access size_t;
      Unavailable : access int) return int;
   pragma Import (C, C_Getnext, "posix_trace_getnext_event");

   function C_Trygetnext
     (Trid        : unsigned_long;
      Info        : access C_Event_Info;
      Data        : System.Address;
      Bytes       : size_t;
      Length      : access size_t;
      Unavailable : access int) return int;
   pragma Import (C, C_Trygetnext, "posix_trace_trygetnext_event");

   procedure Get
     (Next      : C_Next;
      Trid      : Trace_Identifier;
      Info      : out Event_Info;
      Data      : out Storage.Storage_Array;
      Last      : out Storage.Storage_Offset;
      Available : out Boolean)
   is
      C           : aliased C_Event_Info :=
        (Address => System.Null_Address, Stamp => (0, 0), Thread => 0, Event => 0, others => 0);
      Length      : aliased size_t := 0;
      Unavailable : aliased int := 0;
   begin
      Check
        (Next
           (unsigned_long (Trid),
            C'Access,
            Data'Address,
            Data'Length,
            Length'Access,
            Unavailable'Access));
      Available := Unavailable = 0;
      Last := Data'First + Storage.Storage_Offset (if Available then Length else 0) - 1;
      Info :=
        (Event         => Event_Identifier (C.Event),
         Process       => Process_Identification.To_Process_ID (C.Process),
         Address       => C.Address,
         Thread        => C.Thread,
         Kernel_Thread => C.Thread_ID,
         Stamp         => C.Stamp,
         Truncation    => Truncation_Status'Val (C.Truncation));
   end Get;

   procedure Get_Next_Event
     (Trid      : Trace_Identifier;
      Info      : out Event_Info;
      Data      : out Storage.Storage_Array;
      Last      : out Storage.Storage_Offset;
      Available : out Boolean) is
   begin
      Get (C_Getnext'Access, Trid, Info, Data, Last, Available);
   end Get_Next_Event;

   procedure Try_Get_Next_Event
     (Trid      : Trace_Identifier;
      Info      : out Event_Info;
      Data      : out Storage.Storage_Array;
      Last      : out Storage.Storage_Offset;
      Available : out Boolean) is
   begin
      Get (C_Trygetnext'Access, Trid, Info, Data, Last, Available);
   end Try_Get_Next_Event;

   function To_Number (Event : Event_Identifier) return unsigned is (unsigned (Event));

   function To_Number (Trid : Trace_Identifier) return unsigned_long is (unsigned_long (Trid));

   function To_Event_Set (Words : Event_Set_Words) return Event_Set is ((Words => Words));

end POSIX.Trace;
